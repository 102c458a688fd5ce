"""Logits processors with a state of their own give the text that `generate` gives, though verifiers ask for many positions."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.request import GenerationRequest
from tests.engine import reference_ids
from tests.tiny import PAD, graded_family
from tests.toys import PROMPT as TOY_PROMPT
from tests.toys import VOCAB, chi_square_p, toy_decoder, toy_tables, warped_distribution

torch.set_num_threads(1)
PROMPT = [1, 10, 11, 12, 30, 10, 11]
NEW = 18
SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 30}
ROUTES = {
    "ar": {"method": "ar"},
    "sd": {"method": "sd", "config": PyramidConfig.simple([4, 4], route=(0, 2))},
    "chain": {"method": "polybasic", "config": PyramidConfig.simple([2, 5])},
    "pyramid": {"config": PyramidConfig.simple([3, 6])},
}


class Counting(LogitsProcessor):
    """Lifts one id after another, by the number of its calls. The state is not in the ids: a call too many shifts all of it."""

    def __init__(self, strength: float = 2.0) -> None:
        self.strength = strength
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        start = 7 * self.calls % scores.shape[-1]
        scores[:, start : start + 8] += self.strength
        self.calls += 1
        return scores


class Declared(Counting):
    stateful = True


class Fed(LogitsProcessor):
    """Follows the text as a grammar's automaton does, one new id per call; a refused id that it was fed stays in its sum."""

    stateful = True

    def __init__(self) -> None:
        self.total: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.total = int(input_ids.sum()) if self.total is None else self.total + int(input_ids[0, -1])
        scores = scores.clone()
        scores[:, self.total % 5 :: 5] += 2.0
        return scores


def synthid() -> LogitsProcessor:
    return SynthIDTextWatermarkLogitsProcessor(3, [3, 5, 7, 11], 2**10, 0, 64, torch.device("cpu"))


class Late(Counting):
    """Its first calls change nothing, so that only its attributes show a state."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed = super().__call__(input_ids, scores)
        return changed if self.calls > 6 else scores


PROCESSORS = {"declared": Declared, "noticed": Counting, "late": Late, "fed": Fed, "SynthID": synthid}


@pytest.fixture(scope="module")
def family():
    return graded_family("llama", 3)


@pytest.mark.parametrize("way", ROUTES)
@pytest.mark.parametrize("name", PROCESSORS)
def test_greedy_text_is_that_of_generate(family, name, way):
    pyramid = AdaptivePyramid(family)
    keywords = {"max_new_tokens": NEW, "eos_token_id": None}
    expected = reference_ids(family[-1], PROMPT, logits_processor=[PROCESSORS[name]()], **keywords)
    assert expected != reference_ids(family[-1], PROMPT, **keywords)
    processor = PROCESSORS[name]()
    for _ in range(2):  # the caller's object stays as it was
        out = pyramid.generate(PROMPT, logits_processor=[processor], **keywords, **ROUTES[way])
        assert out.ids == expected
    if way != "ar":
        assert sum(s.rejected for s in out.stats.stages) and sum(s.accepted for s in out.stats.stages)


@pytest.mark.parametrize("way", ["ar", "pyramid"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_keyed_sampling_is_that_of_generate(family, name, way):
    pyramid = AdaptivePyramid(family)
    keywords = {"max_new_tokens": NEW, "eos_token_id": None, **SAMPLING}
    expected = reference_ids(family[-1], PROMPT, 4, logits_processor=[PROCESSORS[name]()], **keywords)
    out = pyramid.generate(PROMPT, seed=4, logits_processor=[PROCESSORS[name]()], **keywords, **ROUTES[way])
    assert out.ids == expected


def test_a_lookup_and_an_early_stop_below(family):
    pyramid = AdaptivePyramid([PromptLookup(3, 1), *family[1:]])
    keywords = {"max_new_tokens": NEW, "eos_token_id": None}
    expected = reference_ids(family[-1], PROMPT, logits_processor=[Declared(0.5)], **keywords)
    for config in (PyramidConfig.simple([2, 5]), PyramidConfig.simple([3, 3], route=((0, 1), 2))):
        out = pyramid.generate(PROMPT, logits_processor=[Declared(0.5)], config=config, **keywords)
        assert out.ids == expected


@pytest.mark.parametrize(
    "watermark",
    [
        SynthIDTextWatermarkingConfig(
            ngram_len=3, keys=[3, 5, 7, 11], sampling_table_size=2**10, context_history_size=64
        ),
        WatermarkingConfig(bias=3.0),
        WatermarkingConfig(bias=3.0, seeding_scheme="selfhash", context_width=2),
    ],
    ids=["SynthID", "lefthash", "selfhash"],
)
def test_watermarking_config(family, watermark):
    pyramid = AdaptivePyramid(family)
    keywords = {"max_new_tokens": 16, "eos_token_id": None, "watermarking_config": watermark}
    for way in ("ar", "sd", "chain"):
        out = pyramid.generate(PROMPT, **keywords, **ROUTES[way])
        assert out.ids == reference_ids(family[-1], PROMPT, **keywords)
    sampled = reference_ids(family[-1], PROMPT, 3, **keywords, **SAMPLING)
    assert pyramid.generate(PROMPT, seed=3, **keywords, **SAMPLING, **ROUTES["pyramid"]).ids == sampled


def test_a_guidance_processor_with_a_cache_of_its_own(family):
    def guidance() -> LogitsProcessor:
        return UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, family[-1])

    keywords = {"max_new_tokens": 12, "eos_token_id": None}
    expected = reference_ids(family[-1], PROMPT, logits_processor=[guidance()], **keywords)
    assert expected != reference_ids(family[-1], PROMPT, **keywords)
    for way in ("ar", "sd", "chain"):
        out = AdaptivePyramid(family).generate(PROMPT, logits_processor=[guidance()], **keywords, **ROUTES[way])
        assert out.ids == expected


@pytest.mark.parametrize("method", ["sd", "polybasic", "pyramid"])
def test_exact_sampling_has_the_distribution_of_plain_sampling(method):
    """Three tokens of four ids, enumerated: what a call lifts depends on how many came before it."""

    class Lifting(LogitsProcessor):
        stateful = True
        calls = 0

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores[:, self.calls % VOCAB] += 1.5
            self.calls += 1
            return scores

    tables = toy_tables(3, (0.9, 1.0), seed=3)
    expected = {(): 1.0}
    for i in range(3):
        lifted = 1.5 * np.eye(VOCAB)[i]
        expected = {
            (*output, token): mass * p
            for output, mass in expected.items()
            for token, p in enumerate(warped_distribution(tables[-1][(*TOY_PROMPT, *output)[-2:]].numpy() + lifted))
        }
    config = PyramidConfig.simple([1, 2], [0.3, 0.0], route=(0, 2) if method == "sd" else (0, 1, 2))
    decoder, counts = toy_decoder(tables), Counter()
    for seed in range(900):
        request = GenerationRequest(TOY_PROMPT, 3, do_sample=True, processors=[Lifting()], seed=seed)
        decoding = decoder.start(request, method)
        while not decoding.finished:
            decoding.step(config)
        counts[tuple(decoding.new_ids)] += 1
    assert chi_square_p(counts, expected) > 1e-4


@pytest.mark.parametrize("name", ["declared", "noticed", "SynthID"])
def test_every_row_of_a_batch_starts_from_the_same_state(family, name):
    rows = [PROMPT, [2, 3, 4, 5, 6, 7, 8]]
    ids = torch.tensor(rows)
    keywords = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD}
    expected = family[-1].generate(
        ids, attention_mask=torch.ones_like(ids), logits_processor=[PROCESSORS[name]()], **keywords
    )
    pyramid = AdaptivePyramid(family)
    out = pyramid.generate(rows, logits_processor=[PROCESSORS[name]()], **keywords, **ROUTES["sd"])
    assert torch.equal(out.sequences, expected)
    hooked = AdaptivePyramid(family, **ROUTES["sd"])
    assert torch.equal(
        family[-1].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[PROCESSORS[name]()],
            custom_generate=hooked.custom_generate,
            **keywords,
        ),
        expected,
    )


def test_a_stateful_processor_that_cannot_be_copied_is_refused(family):
    processor = Declared()
    processor.lock = threading.Lock()
    with pytest.raises(TypeError, match="Declared is stateful and cannot be copied .*__deepcopy__"):
        AdaptivePyramid(family).generate(PROMPT, logits_processor=[processor], max_new_tokens=4)


def test_a_processor_that_says_it_has_no_state_is_called_itself(family):
    class Logging(Counting):
        stateful = False

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return scores

    processor = Logging()
    out = AdaptivePyramid(family).generate(PROMPT, logits_processor=[processor], max_new_tokens=8, **ROUTES["sd"])
    assert out.ids == reference_ids(family[-1], PROMPT, max_new_tokens=8)
    assert processor.calls >= 8
