"""The cost table and the bench: what is fed, what is counted, what is suppressed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_pyramid import AdaptivePyramid
from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import METHODS
from adaptive_pyramid.throughput import CostModel
from tests.tiny import EOS, PAD, graded_family, tiny_tokenizer
from tuning.study.benchmark import Bench, Timed, in_rotation
from tuning.traces import measured_costs

WIDTHS = (1, 4, 16)
CONFIG = PyramidConfig.simple((3, 4), route=(1, 2))


@pytest.fixture(scope="module")
def models():
    return graded_family("llama", 2, max_position_embeddings=512)


@pytest.fixture(scope="module")
def bench(models):
    return Bench(AdaptivePyramid([PromptLookup(), *models], tiny_tokenizer()), METHODS["pyramid"], max_new_tokens=12)


def cached(keywords: dict) -> int:
    """Tokens in the cache that a model is called with; older versions of transformers call it by another name."""
    return keywords["cache" if "cache" in keywords else "past_key_values"].get_seq_length()


def test_every_forward_feeds_its_width_behind_the_context(models) -> None:
    decoder = PyramidDecoder([PromptLookup(), *models])
    seen = []
    for model in models:
        model.register_forward_pre_hook(
            lambda module, _, keywords: seen.append(
                (module is models[-1], keywords["input_ids"].shape[1], cached(keywords))
            ),
            with_kwargs=True,
        )
    calls = []
    costs = measured_costs.cost_table(
        decoder, [10, 11, 12], context=20, widths=WIDTHS, repeats=2, progress=lambda: calls.append(1)
    )
    for model in models:
        model._forward_pre_hooks.clear()
    assert len(calls) == 2 * 3 * 3
    for is_target in (False, True):
        assert [entry[1:] for entry in seen if entry[0] == is_target] == [(20, 0)] + [
            (width, 20) for width in WIDTHS
        ] * 3
    assert set(costs.table) == {1, 2} and all(
        set(row) == set(WIDTHS) and min(row.values()) > 0 for row in costs.table.values()
    )


def test_no_prompt_costs_less_than_nothing(models, monkeypatch) -> None:
    noisy = CostModel({0: {1: 0.1, 4: 0.5, 16: 0.2}, 1: {1: 0.1, 4: 0.2, 16: 0.3}})
    monkeypatch.setattr(measured_costs, "measure_costs", lambda *_: noisy)
    costs = measured_costs.cost_table(PyramidDecoder(models), [10, 11], context=8, widths=WIDTHS)
    assert noisy.seconds(0, 400) < costs.seconds(0, 400) == 0.5
    assert costs.table[1] == noisy.table[1] and costs.seconds(0, 4) == 0.5


def test_timed_runs_have_one_length_and_no_special_tokens(bench) -> None:
    prompt = [1, 10, 11, 12]
    for run in (bench.ar(prompt), bench.run(prompt, CONFIG), bench.hugging_face(prompt)):
        assert len(run.ids) == 12 and not {EOS, PAD} & set(run.ids) and run.seconds > 0
    assert bench.ar(prompt).ids == bench.run(prompt, CONFIG).ids == bench.hugging_face(prompt).ids


def test_every_timed_run_pays_for_its_prompt(bench) -> None:
    prompt = [1, *range(10, 40)]
    for _ in range(2):
        first = bench.run(prompt, CONFIG).stats.blocks[0]
        assert {
            forward.tier for forward in first.forwards if forward.context == 0 and forward.width >= len(prompt)
        } == {1, 2}


def test_answers_end_where_the_model_ends_them(bench) -> None:
    prompts = [[1, a, b] for a in range(8, 20) for b in range(8, 14)]
    answers = [bench.answer(prompt).ids for prompt in prompts]
    ended = [ids for ids in answers if ids[-1] == EOS]
    assert ended and all(len(ids) <= 12 for ids in answers)  # some of many end early
    index = next(i for i, ids in enumerate(answers) if ids[-1] == EOS and len(ids) > 1)
    bench = replace(bench)
    bench.special = [EOS]
    assert bench.ar(prompts[index]).ids[: len(answers[index]) - 1] == answers[index][:-1]
    assert EOS not in bench.ar(prompts[index]).ids


def test_seconds_until_ends_with_the_block_that_brought_the_token(bench) -> None:
    run = bench.run([1, 10, 11, 12], CONFIG)
    sizes = [block.tokens for block in run.stats.blocks]
    timed = Timed(run.ids, 1.0, run.stats, [(float(i + 1), size) for i, size in enumerate(sizes)])
    assert timed.seconds_until(1) == 1.0
    assert timed.seconds_until(sizes[0]) == 1.0 and timed.seconds_until(sizes[0] + 1) == 3.0
    assert (
        timed.seconds_until(len(run.ids)) == timed.seconds_until(10**6) == sum(seconds for seconds, _ in timed.blocks)
    )


def test_a_price_replaces_the_clock(bench) -> None:
    priced = Bench(bench.pyramid, bench.method, 12, price=lambda block: float(len(block.forwards)))
    run = priced.run([1, 10, 11, 12], CONFIG)
    assert (
        run.seconds
        == sum(len(block.forwards) for block in run.stats.blocks)
        == sum(seconds for seconds, _ in run.blocks)
    )


def test_half_of_target_only_decoding_stands_for_all_of_it(bench) -> None:
    seconds = iter([9.0, 1.0, 2.0, 1.0, 1.0, 5.0])
    priced = Bench(bench.pyramid, bench.method, 12, price=lambda block: next(seconds))
    run = priced.ar_at_its_pace([1, 10, 11, 12])
    assert run.ids == bench.ar([1, 10, 11, 12]).ids[:6] and run.tokens == 12
    assert run.seconds == 19.0 + 6 * 1.0 and run.tokens_per_second == 12 / 25.0
    assert run.seconds_until(6) == 19.0 and run.seconds_until(8) == 21.0 and run.seconds_until(12) == 25.0


def test_rotation_lets_everyone_go_first_once() -> None:
    order = []

    def runner(name: int):
        return lambda: order.append(name) or Timed([name], 1.0)

    runs = [runner(0), runner(1), runner(2)]
    for turn in range(3):
        assert [timed.ids[0] for timed in in_rotation(runs, turn)] == [0, 1, 2]
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]
