"""Faults of one `generate` call: requests that run at once, streamers of calls that fail, stop strings of special tokens."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TextIteratorStreamer

from adaptive_pyramid import AdaptivePyramid, PromptLookup
from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import Controller, RequestInfo
from adaptive_pyramid.control.cost_tracker import CostTracker
from adaptive_pyramid.control.factory import CONTROLS, Pool, default_config, make_controller
from adaptive_pyramid.stats import BlockStats, Decision, Forward
from adaptive_pyramid.throughput import CostModel
from tests.simulated import Regime, SimulatedEnvironment
from tests.tiny import EOS, graded_family, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPTS = ([1, 10, 11, 12], [1, 30, 31, 7, 8, 9])

# ---------------------------------------------------------------- requests that run at once

COSTS = {1: {1: 0.004, 8: 0.006, 64: 0.02}, 2: {1: 0.040, 8: 0.044, 64: 0.09}}  # tier 0 is a lookup


@dataclass
class Run:
    environment: SimulatedEnvironment
    control: object
    blocks: list[BlockStats]

    def step(self) -> None:
        decision = self.control.choose()
        block = replace(self.environment.step(decision.config), decision=decision)
        self.control.observe(block)
        self.blocks.append(block)

    @property
    def finished(self) -> bool:
        return self.environment.finished

    @property
    def seconds(self) -> float:
        return sum(block.seconds for block in self.blocks)


TEXTS = (Regime({0: 0.9, 1: 0.9}, {0: 0.3}, burstiness=0.9), Regime({0: 0.5, 1: 0.7}, {0: 0.3}, burstiness=0.9))


def controller(name: str) -> Controller:
    return make_controller(name, None, default_config(3), Pool(3, (1, 2), CostModel(COSTS), False))


def begun(shared: Controller, seed: int) -> Run:
    environment = SimulatedEnvironment(COSTS, [TEXTS[seed % 2]], seed=seed, noise=0.0)
    return Run(environment, shared.begin(environment.start(32, 200)), [])


def one_after_the_other(name: str, seed: int) -> list[Run]:
    shared, runs = controller(name), []
    for i in range(2):
        runs.append(begun(shared, 100 * seed + i))
        while not runs[-1].finished:
            runs[-1].step()
    return runs


def in_turns(name: str, seed: int) -> list[Run]:
    shared = controller(name)
    runs = [begun(shared, 100 * seed + i) for i in range(2)]
    while unfinished := [run for run in runs if not run.finished]:
        for run in unfinished:
            run.step()
    return runs


@pytest.mark.parametrize("seed", range(5))
def test_requests_in_turns_are_controlled_as_well_as_one_after_the_other(seed: int) -> None:
    interleaved, sequential = in_turns("auto", seed), one_after_the_other("auto", seed)
    for run in (*interleaved, *sequential):
        assert not run.control._lost, "a tier was counted as lost, though it can read this text"
        assert sum(run.control.blocks.values()) == len(run.blocks)
        assert run.control._position == run.environment.position == 200
    ratio = sum(run.seconds for run in interleaved) / sum(run.seconds for run in sequential)
    # What one request shows comes to the other at another time, so they differ a little. Sharing state, it was 1.6 to 3.4.
    assert ratio < 1.15


@pytest.mark.parametrize("name", sorted(set(CONTROLS) - {"fixed", "auto"}))
def test_every_policy_can_run_requests_in_turns(name: str) -> None:
    for run in in_turns(name, 3):
        assert run.finished and not run.control._lost


def test_a_tier_that_one_text_lost_stays_in_the_other() -> None:
    shared = controller("auto")
    runs = [begun(shared, i) for i in range(2)]
    lost = runs[0].control.choose().config
    while 1 not in lost.tiers:
        runs[0].step()
        lost = runs[0].control.choose().config
    runs[0].control.observe(runs[0].environment.step(lost.with_route((2,))))
    assert 1 in runs[0].control._lost and not runs[1].control._lost
    while not runs[0].finished:
        runs[0].step()
        assert 1 not in runs[0].blocks[-1].config.tiers
    while not runs[1].finished:
        runs[1].step()
    assert any(1 in block.config.tiers for block in runs[1].blocks)


def test_a_cache_belongs_to_the_text_that_wrote_it_last() -> None:
    tracker = CostTracker(Pool(2, (0, 1), CostModel({0: {1: 0.01, 8: 0.02}, 1: {1: 0.1, 8: 0.2}}), True))
    config = PyramidConfig.simple([4], route=(0, 1))

    def read(request, context: int) -> None:
        request.observe(BlockStats(config, 0, context, 1, 0.1, forwards=(Forward(0, context, 1, 0, 0.1),)))

    one, other = tracker.begin(RequestInfo(100, 50)), tracker.begin(RequestInfo(100, 50, reused=40))
    read(one, 100)
    assert one.catch_up((0,)) == 0 and other.catch_up((0,)) == tracker.catching_up(0, 60)
    read(other, 100)
    assert other.catch_up((0,)) == 0 and one.catch_up((0,)) == tracker.catching_up(0, 61)  # 40 tokens are common


@pytest.mark.parametrize("control", ["auto", "thompson"])
def test_two_streams_at_once_give_the_texts_of_one_after_the_other(control: str) -> None:
    family = graded_family("llama", 2)
    keywords = {"max_new_tokens": 60, "eos_token_id": None}

    def pyramid() -> AdaptivePyramid:
        return AdaptivePyramid([PromptLookup(3, 1), *family], TOKENIZER, control=control)

    expected = [AdaptivePyramid(family[-1:], TOKENIZER).generate(prompt, **keywords).text for prompt in PROMPTS]
    both = pyramid()
    blocks: list[list[BlockStats]] = [[], []]
    streams = [
        both.stream(prompt, on_block=lambda stats, ids, seen=seen: seen.append(stats), **keywords)
        for prompt, seen in zip(PROMPTS, blocks)
    ]
    texts = ["", ""]
    running = [0, 1]
    while running:
        for i in list(running):
            piece = next(streams[i], None)
            if piece is None:
                running.remove(i)
            else:
                texts[i] += piece
    assert texts == expected
    for seen in blocks:
        assert all(block.config == block.decision.config for block in seen), "the block ran another request's config"
        assert [block.position for block in seen] == [sum(b.tokens for b in seen[:i]) for i in range(len(seen))]


class StartAndStep:
    """A controller as it was written before `begin`."""

    name, decision = "mine", None

    def __init__(self) -> None:
        self.notes = ["mine"]

    def start(self, request: RequestInfo) -> PyramidConfig:
        return PyramidConfig.simple([2])

    def step(self, block: BlockStats) -> PyramidConfig:
        return PyramidConfig.simple([3])


def test_a_controller_with_start_and_step_still_works() -> None:
    family = graded_family("llama", 2)
    with pytest.warns(DeprecationWarning, match=r"StartAndStep has start\(\) and step\(\).*begin\(request\)"):
        pyramid = AdaptivePyramid(family, control=StartAndStep())
    stats = pyramid.generate(PROMPTS[0], max_new_tokens=12, eos_token_id=EOS).stats
    assert [block.config.l_D for block in stats.blocks] == [2] + [3] * (len(stats.blocks) - 1)
    assert stats.control_name == "mine" and stats.notes == ["mine"]
    with pytest.raises(TypeError, match="control must be a name"):
        AdaptivePyramid(family, control=object())
    assert isinstance(stats.blocks[0].decision, Decision)


# ---------------------------------------------------------------- streamers of calls that fail


class Interrupted(LogitsProcessor):
    """Raises at the fifth new token."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= len(PROMPTS[0]) + 5:
            raise self.error
        return scores


@pytest.mark.parametrize(
    ("error", "prompt", "keywords"),
    [
        (RuntimeError, PROMPTS[0], {"logits_processor": [Interrupted(RuntimeError("five"))]}),
        (KeyboardInterrupt, PROMPTS[0], {"logits_processor": [Interrupted(KeyboardInterrupt())]}),
        (ValueError, [], {}),
        (ValueError, [[1, 10], [1, 11]], {}),
        (TypeError, PROMPTS[0], {"max_new_tokns": 3}),
        (ValueError, PROMPTS[0], {"num_beams": 2}),
        (ValueError, PROMPTS[0], {"method": "sdd"}),
    ],
)
def test_a_streamer_ends_when_its_call_fails(error, prompt, keywords) -> None:
    pyramid = AdaptivePyramid(graded_family("llama", 2), TOKENIZER, control="fixed")
    streamer = TextIteratorStreamer(TOKENIZER, timeout=20)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(streamer), daemon=True)
    reader.start()
    with pytest.raises(error if prompt else (TypeError, ValueError)):
        pyramid.generate(prompt, streamer=streamer, **{"max_new_tokens": 20, "eos_token_id": None, **keywords})
    reader.join(timeout=5)
    assert not reader.is_alive(), "the reader was left waiting"


def test_a_streamer_is_ended_once() -> None:
    ended = []

    class Counting(TextIteratorStreamer):
        def end(self) -> None:
            ended.append(True)
            super().end()

    out = AdaptivePyramid(graded_family("llama", 2), TOKENIZER).generate(
        PROMPTS[0],
        max_new_tokens=9,
        streamer=(streamer := Counting(TOKENIZER, skip_prompt=True, skip_special_tokens=True)),
    )
    assert "".join(streamer) == out.text and ended == [True]


# ---------------------------------------------------------------- stop strings of special tokens


def chat_tokenizer():
    """With two special tokens more, as chat templates write them."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|im_start|>"]})
    return tokenizer


class Forced(LogitsProcessor):
    """The text is what the test says, whatever the model thinks."""

    def __init__(self, prompt: int, ids: list[int]) -> None:
        self.prompt, self.ids = prompt, ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = input_ids.shape[1] - self.prompt
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.ids[min(at, len(self.ids) - 1)]] = 0.0
        return forced


@pytest.fixture(scope="module")
def chat():
    tokenizer = chat_tokenizer()
    return tokenizer, graded_family("llama", 2, vocab_size=len(tokenizer))


@pytest.mark.parametrize(
    ("strings", "visible"),
    [
        (["<|im_end|>"], "the tea"),
        (["tea<|im_end|>"], "the tea"),
        (["a<|im_end|><|im_start|>u"], "the teau"),
        (["im_end|><|im_start|>us"], "the teaus"),
        (["<|im_start|>"], "the tea"),
        (["<eos>"], "the teauser: no"),
        (["r: n", "<eos>"], "the teauser: n"),
        (["e t", "<|im_end|>"], "the t"),
        (["<|im_end|> <|im_start|>"], None),  # no space is there
    ],
)
@pytest.mark.parametrize("length", [1, 3, 16])
def test_stop_strings_are_found_in_special_tokens(chat, strings, visible, length) -> None:
    tokenizer, family = chat
    text = tokenizer("the tea<|im_end|><|im_start|>user: no<eos>, go on. and on")["input_ids"]
    prompt = [1, 10, 11, 12]
    keywords = {
        "logits_processor": LogitsProcessorList([Forced(len(prompt), text)]),
        "stop_strings": strings,
        "max_new_tokens": len(text),
        "eos_token_id": None,
    }
    expected = family[-1].generate(torch.tensor([prompt]), do_sample=False, tokenizer=tokenizer, **keywords)[0, 4:]
    pyramid = AdaptivePyramid(family, tokenizer, config=PyramidConfig.simple([length]), control="fixed")
    out = pyramid.generate(prompt, **keywords)
    assert out.ids == expected.tolist()
    assert out.finish_reason == ("length" if visible is None else "stop_string")
    assert out.text == (tokenizer.decode(text, skip_special_tokens=True) if visible is None else visible)
    pieces = list(pyramid.stream(prompt, **keywords))
    assert "".join(pieces) == out.text
