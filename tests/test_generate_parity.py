"""`AdaptivePyramid.generate` against `model.generate`: keywords, stop rules, scores, batches, streams, hooks."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, TextStreamer

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.pyramid import AdaptivePyramid
from tests.engine import ChosenControl, reference_ids
from tests.tiny import ARCHITECTURES, BOS, EOS, PAD, VOCAB, graded_family, tiny_tokenizer

torch.set_num_threads(1)
TOKENIZER = tiny_tokenizer()
PROMPT = [1, 10, 11, 12, 30]
CONFIG = PyramidConfig.simple([3, 4])


@pytest.fixture(scope="module")
def family():
    return graded_family("llama", 3)


@pytest.fixture(scope="module")
def pyramid(family):
    return AdaptivePyramid(family, TOKENIZER, config=CONFIG, control="fixed")


def changing(seed: int) -> ChosenControl:
    rng = random.Random(seed)
    return ChosenControl(
        lambda blocks: PyramidConfig(
            tuple(StageConfig(rng.choice((1, 2, 4, 8))) for _ in range(2)), rng.choice(all_routes(3))
        )
    )


GREEDY_KEYWORDS = [
    {"max_new_tokens": 1},
    {"max_new_tokens": 2},
    {"max_length": 12},
    {},
    {"eos_token_id": [20, 31, 52, 40]},
    {"eos_token_id": 52, "min_new_tokens": 9},
    {"min_length": 15, "eos_token_id": [20, 52, 53]},
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1},
    {"bad_words_ids": [[20], [52], [47, 11]]},
    {"suppress_tokens": [20, 52]},
    {"begin_suppress_tokens": [20, 59]},
    {"forced_eos_token_id": EOS},
    {"forced_bos_token_id": 9},
    {"exponential_decay_length_penalty": (3, 1.7), "eos_token_id": [EOS, 40]},
    {"sequence_bias": [[[52], -4.0], [[30, 11], 5.0]]},
    {"encoder_repetition_penalty": 1.7},
    {"encoder_no_repeat_ngram_size": 1},
    {"remove_invalid_values": True},
    {"renormalize_logits": True},
    {"temperature": 0.3, "top_k": 3},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [4 + len(ids), 5 + int(ids[-1]) % 40, 52]},
]


@pytest.mark.parametrize("keywords", GREEDY_KEYWORDS, ids=lambda keywords: ",".join(keywords) or "defaults")
def test_greedy_keywords(pyramid, family, keywords):
    keywords = {**({} if "max_length" in keywords or not keywords else {"max_new_tokens": 20}), **keywords}
    for prompt in (PROMPT, [1], [9, 8, 9, 8, 9]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = reference_ids(family[-1], prompt, **keywords)
            out = pyramid.generate(torch.tensor([prompt]), control=changing(len(prompt)), **keywords)
        assert out.ids == expected
        assert out.sequences.tolist() == [prompt + expected]


class NoOdd(LogitsProcessor):
    """A user's own processor: bans odd ids after an even one. Writes to its argument, as many do."""

    def __call__(self, input_ids, scores):
        if input_ids[0, -1] % 2 == 0:
            scores[:, 1::2] = -torch.inf
        return scores


class EvenLength(StoppingCriteria):
    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.after and input_ids.shape[1] % 2 == 0)


def test_users_processors_and_criteria(pyramid, family):
    for prompt in (PROMPT, [1, 9]):
        keywords = {
            "max_new_tokens": 20,
            "logits_processor": [NoOdd()],
            "stopping_criteria": [EvenLength(11)],
            "eos_token_id": None,
        }
        out = pyramid.generate(prompt, **keywords)
        assert out.ids == reference_ids(family[-1], prompt, **keywords)
        assert out.finish_reason == "stopping_criteria" and len(prompt + out.ids) == 12
        sampled = {**keywords, "do_sample": True}
        assert pyramid.generate(prompt, seed=3, **sampled).ids == reference_ids(family[-1], prompt, 3, **sampled)


def test_max_time(pyramid):
    assert len(pyramid.generate(PROMPT, max_new_tokens=200, eos_token_id=None, max_time=1e-9).ids) == 1
    assert len(pyramid.generate(PROMPT, max_new_tokens=20, eos_token_id=None, max_time=600.0).ids) == 20
    with pytest.raises(ValueError, match="max_time"):
        pyramid.generate(PROMPT, max_time=-1.0)


@pytest.mark.parametrize("sampling", [False, True])
def test_scores_are_the_targets(pyramid, family, sampling):
    keywords = {
        "max_new_tokens": 16,
        "repetition_penalty": 1.3,
        "min_new_tokens": 4,
        **({"do_sample": True, "top_k": 9} if sampling else {}),
    }
    ids = torch.tensor([PROMPT])
    with pytest.MonkeyPatch.context() as patch:
        if sampling:
            drawn = iter(pyramid.generate(PROMPT, seed=5, **keywords).ids)
            patch.setattr(torch, "multinomial", lambda probabilities, num_samples: torch.tensor([[next(drawn)]]))
        theirs = family[-1].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
            **keywords,
        )
    ours = pyramid.generate(PROMPT, seed=5, output_scores=True, output_logits=True, control=changing(1), **keywords)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert len(ours.scores) == len(ours.logits) == len(ours.ids)
    for mine, its in zip(ours.scores + ours.logits, theirs.scores + theirs.logits):
        assert mine.shape == (1, VOCAB) and mine.dtype == torch.float32
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
    without = pyramid.generate(PROMPT, seed=5, **keywords)
    assert without.scores is None and without.logits is None


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


BATCH = [[40, 41], [1, 10, 11, 12, 13], [9]]
BATCH_KEYWORDS = [
    {"max_new_tokens": 14},
    {"max_length": 12},
    {"max_length": 16, "min_length": 14, "eos_token_id": [EOS, 11, 52]},
    {"max_new_tokens": 12, "eos_token_id": [11, 52, 30]},
    {"max_new_tokens": 12, "min_new_tokens": 10, "eos_token_id": [11, 52, 30]},
    {"max_new_tokens": 9, "repetition_penalty": 1.5},
    {"max_new_tokens": 9, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 9, "encoder_repetition_penalty": 1.9},
    {"max_new_tokens": 9, "begin_suppress_tokens": [14, 53]},
    {"max_new_tokens": 9, "forced_eos_token_id": 7},
    {"max_new_tokens": 9, "prefix_allowed_tokens_fn": lambda row, ids: [20 + 5 * row, 21 + 5 * row, 22 + 5 * row]},
    {"max_new_tokens": 9, "stopping_criteria": [EvenLength(10)]},
]


@pytest.mark.parametrize("keywords", BATCH_KEYWORDS, ids=lambda keywords: ",".join(keywords))
def test_left_padded_batches(pyramid, family, keywords):
    """One after another through warm caches, and laid out as generate lays them out. Also as its custom_generate loop."""
    ids, mask = left_padded(BATCH)
    expected = family[-1].generate(ids, attention_mask=mask, pad_token_id=PAD, **keywords).tolist()
    out = pyramid.generate(ids, attention_mask=mask, pad_token_id=PAD, **keywords)
    assert out.sequences.tolist() == expected
    assert (
        pyramid.generate({"input_ids": ids, "attention_mask": mask}, pad_token_id=PAD, **keywords).sequences.tolist()
        == expected
    )
    assert (
        pyramid.generate(ids, pad_token_id=PAD, **keywords).sequences.tolist() == expected
    )  # mask inferred, as generate does
    looped = family[-1].generate(
        ids, attention_mask=mask, pad_token_id=PAD, custom_generate=pyramid.custom_generate, **keywords
    )
    assert looped.tolist() == expected
    if not {"max_length", "stopping_criteria", "encoder_repetition_penalty"} & keywords.keys():
        # Lists of prompts need no padding, and come back padded; only what counts pads can tell the difference.
        rows = pyramid.generate(BATCH, pad_token_id=PAD, **keywords)
        assert rows.sequences.tolist() == expected
        assert [[t for t in row if t != PAD] for row in rows.ids] == [
            [t for t in row[5:] if t != PAD] for row in expected
        ]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_padding_in_every_architecture(arch):
    family = graded_family(arch, 3)
    ids, mask = left_padded([[40, 41], list(range(4, 16))])
    expected = family[-1].generate(ids, attention_mask=mask, pad_token_id=PAD, max_new_tokens=16)
    out = AdaptivePyramid(family, config=CONFIG).generate(ids, attention_mask=mask, pad_token_id=PAD, max_new_tokens=16)
    assert out.sequences.tolist() == expected.tolist()


def test_a_pad_token_that_is_also_eos_is_text(pyramid, family):
    ids = torch.tensor([[EOS, EOS, 10, 11]])
    expected = family[-1].generate(ids, pad_token_id=EOS, eos_token_id=EOS, max_new_tokens=9)
    assert (
        pyramid.generate(ids, pad_token_id=EOS, eos_token_id=EOS, max_new_tokens=9).sequences.tolist()
        == expected.tolist()
    )


def test_masks_that_mean_something_else_are_refused(pyramid):
    ids = torch.tensor([[9, 10, 11, 12]])
    for mask, message in (
        ([[1, 0, 1, 1]], "one run of ones"),
        ([[1, 1, 1, 0]], "left padding"),
        ([[1, 1, 1]], "shape of input_ids"),
        ([[0, 0, 0, 0]], "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            pyramid.generate(ids, attention_mask=torch.tensor(mask))
    with pytest.raises(ValueError, match="inferred from pad_token_id=0"):
        pyramid.generate(torch.tensor([[9, PAD, 11, 12]]))
    assert pyramid.generate(torch.tensor([[9, PAD, 11, 12]]), attention_mask=torch.ones(1, 4), max_new_tokens=2).ids


def test_every_kind_of_prompt_means_the_same(pyramid):
    text = "the cat, 3 hats"
    ids = TOKENIZER(text)["input_ids"]
    expected = pyramid.generate(ids, max_new_tokens=8).ids
    for prompt in (
        text,
        tuple(ids),
        torch.tensor(ids),
        torch.tensor([ids]),
        TOKENIZER(text),
        TOKENIZER(text, return_tensors="pt"),
    ):
        assert pyramid.generate(prompt, max_new_tokens=8).ids == expected
    assert pyramid.generate(input_ids=torch.tensor([ids]), max_new_tokens=8).ids == expected
    for batch in (
        [text, "b"],
        [ids, TOKENIZER("b")["input_ids"]],
        TOKENIZER([text, "b"], padding=True, return_tensors="pt"),
    ):
        assert pyramid.generate(batch, max_new_tokens=8)[0].ids == expected
    chat = [{"role": "user", "content": "hello"}]
    templated = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert pyramid.generate(chat, max_new_tokens=8).sequences[0, : len(templated)].tolist() == templated
    assert (
        pyramid.generate([chat, chat], max_new_tokens=8).ids == [pyramid.generate(templated, max_new_tokens=8).ids] * 2
    )
    for wrong, error in (
        (None, TypeError),
        ([], TypeError),
        (3.5, TypeError),
        (torch.tensor([0.5]), TypeError),
        ("", ValueError),
        ([[]], TypeError),
        ([70], ValueError),
        ([-1], ValueError),
        ([["a"]], TypeError),
    ):
        with pytest.raises(error):
            pyramid.generate(wrong, max_new_tokens=8)


def test_generation_configs_are_read_and_left_alone(family):
    target = copy.deepcopy(family[-1])
    target.generation_config = GenerationConfig(
        max_new_tokens=7, repetition_penalty=1.4, eos_token_id=[EOS, 5], pad_token_id=PAD
    )
    pyramid = AdaptivePyramid([family[0], target], TOKENIZER)
    given = GenerationConfig(max_new_tokens=9, no_repeat_ngram_size=2, eos_token_id=EOS)
    before = [
        copy.deepcopy(config.to_dict()) for config in (target.generation_config, given, family[0].generation_config)
    ]
    for keywords in (
        {},
        {"generation_config": given},
        {"generation_config": given, "max_new_tokens": 3},
        {"repetition_penalty": 1.0, "do_sample": True, "top_k": 5},
    ):
        out = pyramid.generate(PROMPT, seed=1, **keywords)
        assert out.ids == reference_ids(target, PROMPT, 1, **keywords)
        for _ in range(3):
            assert (
                pyramid.generate(PROMPT, seed=1, **keywords).ids == out.ids
            )  # nothing learned leaks into the next call
    assert [config.to_dict() for config in (target.generation_config, given, family[0].generation_config)] == before


def test_a_checkpoints_cache_preference_is_no_obstacle(family):
    target = copy.deepcopy(family[-1])
    target.generation_config.cache_implementation = "hybrid"  # what Gemma 3 checkpoints say
    pyramid = AdaptivePyramid([family[0], target])
    assert pyramid.generate(PROMPT, max_new_tokens=5).ids == reference_ids(family[-1], PROMPT, max_new_tokens=5)
    with pytest.raises(ValueError, match="cache_implementation='static'"):
        pyramid.generate(PROMPT, cache_implementation="static")


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"max_new_token": 3}, TypeError, "did you mean 'max_new_tokens'"),
        ({"sed": 3}, TypeError, "did you mean 'seed'"),
        ({"num_beams": 2}, ValueError, "beam search"),
        ({"num_return_sequences": 2}, ValueError, "several sequences"),
        ({"penalty_alpha": 0.5}, ValueError, "contrastive"),
        ({"output_attentions": True}, ValueError, "attentions"),
        ({"output_hidden_states": True}, ValueError, "hidden states"),
        ({"assistant_model": object()}, ValueError, "assistant_model"),
        ({"num_assistant_tokens": 5}, ValueError, "no effect here"),
        ({"length_penalty": 2.0}, ValueError, "beam search"),
        ({"prompt_lookup_num_tokens": 3}, ValueError, "PromptLookup"),
        ({"use_cache": False}, ValueError, "use_cache"),
        ({"guidance_scale": 2.0}, ValueError, "classifier-free"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"do_sample": True, "temperature": 0}, ValueError, "temperature must be above 0"),
        ({"do_sample": True, "temperature": 0.0}, ValueError, "temperature must be above 0"),
        ({"do_sample": True, "temperature": -1.0}, ValueError, "temperature"),
        ({"do_sample": True, "top_p": 1.5}, ValueError, "top_p"),
        ({"do_sample": True, "min_p": 2.0}, ValueError, "min_p"),
        ({"do_sample": True, "top_k": -1}, ValueError, "top_k"),
        ({"repetition_penalty": 0.0}, ValueError, "repetition_penalty"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens"),
        ({"max_length": 3}, ValueError, "max_length"),
        ({"stop_strings": [""]}, ValueError, "stop_strings"),
        ({"method": "medusa"}, ValueError, "unknown method 'medusa'"),
        ({"drift_budget": -1.0}, ValueError, "drift_budget"),
        ({"config": PyramidConfig.simple([2])}, ValueError, "2 tiers"),
    ],
)
def test_mistakes_are_named(pyramid, keywords, error, message):
    with pytest.raises(error, match=message):
        pyramid.generate(PROMPT, **keywords)


def test_values_that_ask_for_nothing_are_welcome(pyramid, family):
    """What scripts written for generate pass out of habit."""
    keywords = {
        "num_beams": 1,
        "num_return_sequences": 1,
        "output_attentions": False,
        "use_cache": True,
        "synced_gpus": None,
        "assistant_model": None,
        "return_dict_in_generate": True,
        "early_stopping": False,
        "num_assistant_tokens": None,
        "disable_compile": True,
        "max_new_tokens": 6,
    }
    assert pyramid.generate(PROMPT, **keywords).ids == reference_ids(family[-1], PROMPT, max_new_tokens=6)


def test_temperature_zero_without_sampling_is_greedy_and_says_so(pyramid, family):
    with pytest.warns(UserWarning, match="temperature=0"):
        out = pyramid.generate(PROMPT, temperature=0, max_new_tokens=6)
    assert out.ids == reference_ids(family[-1], PROMPT, max_new_tokens=6)


class Recorder:
    def __init__(self) -> None:
        self.put_ids: list[list[int]] = []
        self.ended = 0

    def put(self, value):
        self.put_ids.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


def test_streamer_sees_what_generate_shows_it(pyramid, family):
    ours, theirs = Recorder(), Recorder()
    out = pyramid.generate(torch.tensor([PROMPT]), streamer=ours, max_new_tokens=20)
    family[-1].generate(torch.tensor([PROMPT]), streamer=theirs, max_new_tokens=20)
    assert ours.put_ids == theirs.put_ids == [PROMPT, *([token] for token in out.ids)]
    assert ours.ended == 1
    with pytest.raises(ValueError, match="streamer takes one prompt"):
        pyramid.generate([PROMPT, PROMPT], streamer=Recorder())


def test_text_streamer_prints_the_text(pyramid, capsys):
    out = pyramid.generate(
        PROMPT, streamer=TextStreamer(TOKENIZER, skip_prompt=True, skip_special_tokens=True), max_new_tokens=20
    )
    assert capsys.readouterr().out == out.text + "\n"


@pytest.mark.parametrize("stop", [None, ["zz no"], "reference"])
def test_stream_adds_up_to_the_text(pyramid, stop):
    for start in range(4, 16):
        keywords = {"max_new_tokens": 24, "eos_token_id": [EOS, 30]}
        whole = pyramid.generate([BOS, start], **keywords)
        if stop is not None:
            keywords["stop_strings"] = TOKENIZER.decode(whole.ids[2:4]) if stop == "reference" else stop
        out = pyramid.generate([BOS, start], **keywords)
        pieces = list(pyramid.stream([BOS, start], **keywords))
        assert "".join(pieces) == out.text
        assert len(pieces) <= len(out.stats.blocks)
        assert out.text == TOKENIZER.decode(out.ids, skip_special_tokens=True)[: len(out.text)]
    with pytest.raises(ValueError, match="one prompt"):
        list(pyramid.stream(["a", "b"]))
    with pytest.raises(ValueError, match="needs a tokenizer"):
        list(AdaptivePyramid(pyramid.decoder.tiers).stream([1, 2]))


def test_on_block_sees_every_block_once(pyramid):
    seen: list[int] = []
    stats = []
    out = pyramid.generate(
        PROMPT, max_new_tokens=20, on_block=[lambda s, ids: stats.append(s), lambda s, ids: seen.extend(ids)]
    )
    assert seen == out.ids and stats == out.stats.blocks


def test_custom_generate_takes_sampling_and_stop_rules_from_generate(pyramid, family):
    ids = torch.tensor([PROMPT])
    target = family[-1]
    for keywords in (
        {"eos_token_id": [52, 30]},
        {"repetition_penalty": 1.5},
        {"stopping_criteria": [EvenLength(10)]},
        {"no_repeat_ngram_size": 2},
        {"logits_processor": [NoOdd()]},
    ):
        plain = target.generate(ids, max_new_tokens=20, **keywords)
        assert (
            target.generate(ids, max_new_tokens=20, custom_generate=pyramid.custom_generate, **keywords).tolist()
            == plain.tolist()
        )
    sampled = target.generate(ids, max_new_tokens=20, do_sample=True, top_k=1, custom_generate=pyramid.custom_generate)
    assert sampled.tolist() == target.generate(ids, max_new_tokens=20).tolist()
    with pytest.raises(ValueError, match="tokenizer"):  # transformers 5.24 loses it on the way to its own criteria
        target.generate(ids, stop_strings=["a"], tokenizer=TOKENIZER, custom_generate=pyramid.custom_generate)
    with pytest.raises(ValueError, match="own target"):
        family[0].generate(ids, custom_generate=pyramid.custom_generate)


@pytest.fixture(scope="module")
def llamas():
    return graded_family("llama", 3)


def test_every_shape_of_prompt(llamas):
    pyramid = AdaptivePyramid(llamas, tiny_tokenizer())
    keywords = {"max_new_tokens": 4, "eos_token_id": None}
    rows = [[1, 10, 11], [1, 12, 13]]
    expected = [pyramid.generate(row, **keywords).ids for row in rows]
    tensors = [torch.tensor([row]) for row in rows]
    for prompts in (
        rows,
        tensors,
        [tensor[0] for tensor in tensors],
        [{"input_ids": tensor} for tensor in tensors],
        [{"input_ids": row} for row in rows],
        torch.tensor(rows),
        np.array(rows),
        [np.array(row) for row in rows],
    ):
        out = pyramid.generate(prompts, **keywords)
        assert [one.ids for one in out] == expected
    for wrong, message in (
        ([torch.tensor(rows)], "got 2 rows"),
        (b"abc", "got bytes"),
        ([b"abc"], "got bytes"),
        (np.array([[0.5]]), "integer tensor"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            pyramid.generate(wrong, **keywords)


@pytest.mark.parametrize("method", ["pyramid", "polybasic", "ar"])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_ban_of_everything_is_said(llamas, method, seed):
    pyramid = AdaptivePyramid(llamas, config=PyramidConfig.simple([2, 3]), method=method)
    ban = LogitsProcessorList([lambda ids, scores: torch.full_like(scores, -torch.inf) if ids.shape[1] > 6 else scores])
    with pytest.raises(ValueError, match="no token is possible here"):
        pyramid.generate(
            [1, 10, 11], do_sample=True, seed=seed, max_new_tokens=9, eos_token_id=None, logits_processor=ban
        )
    assert len(pyramid.generate([1, 10, 11], max_new_tokens=9, eos_token_id=None).ids) == 9


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"control": 5}, "control must be a name .* or a Controller, got 5"),
        ({"on_block": 5}, "on_block must be a callable"),
        ({"on_block": [5]}, "on_block must be a callable"),
        ({"generation_config": {}}, "generation_config must be a GenerationConfig, got {}"),
        ({"config": {}}, "config must be a PyramidConfig, got {}"),
    ],
)
def test_wrong_kinds_of_arguments_are_named(llamas, keywords, message):
    with pytest.raises(TypeError, match=message):
        AdaptivePyramid(llamas).generate([1, 10], max_new_tokens=2, **keywords)


def test_none_is_as_good_as_nothing(llamas):
    assert (
        len(
            AdaptivePyramid(llamas)
            .generate([1, 10], max_new_tokens=2, eos_token_id=None, on_block=None, config=None, control=None)
            .ids
        )
        == 2
    )


def test_a_misspelled_control_is_an_error_at_once(llamas):
    with pytest.raises(ValueError, match="unknown control 'thomson'; did you mean 'thompson'"):
        AdaptivePyramid(llamas, control="thomson")
