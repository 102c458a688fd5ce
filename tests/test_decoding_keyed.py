"""Seeded sampling is plain sampling with the same keyed noise, token by token, whatever drafts, routes and control do."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.pyramid import AdaptivePyramid
from tests.engine import ChosenControl, reference_ids
from tests.tiny import ARCHITECTURES, EOS, graded_family, tiny_model

torch.set_num_threads(1)
PROMPT = [1, 10, 11, 12, 30, 10, 11]
SETTINGS = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.95, "max_new_tokens": 24}


def random_configs(n_tiers: int, seed: int, bottom_only: tuple[int, ...] = ()):
    """Another route, other lengths, taus and stops in every block."""
    rng = random.Random(seed)
    routes = [route for route in all_routes(n_tiers) if not set(route[1:]) & set(bottom_only)]

    def choose(blocks) -> PyramidConfig:
        stages = tuple(
            StageConfig(rng.choice((1, 2, 3, 4, 8)), rng.choice((0, 0.1, 0.4)), rng.choice((None, None, 0.7)))
            for _ in range(n_tiers - 1)
        )
        return PyramidConfig(stages, rng.choice(routes))

    return ChosenControl(choose)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_seeded_sampling_equals_plain_sampling_with_the_same_noise(arch):
    family = graded_family(arch, 3)
    pyramid = AdaptivePyramid(family)
    happened, tested, accepted = Counter(), 0, 0
    for seed in range(9):
        eos = [EOS, 5, 20 + seed] if seed % 3 else None  # some texts must reach their length, whatever the model likes
        expected = reference_ids(family[-1], PROMPT, seed, eos_token_id=eos, **SETTINGS)
        out = pyramid.generate(PROMPT, seed=seed, eos_token_id=eos, control=random_configs(3, seed), **SETTINGS)
        assert out.ids == expected
        happened[out.finish_reason] += 1
        for block in out.stats.blocks:
            for v in block.verifications:
                tested, accepted = tested + v.tested, accepted + v.accepted
                happened["accept"] += v.accepted > 0
                happened["reject"] += v.rejected
                happened["bonus"] += v.emitted == v.proposed + 1 > 1
            happened["clip"] += (
                len(block.config.route) > 1
                and block.position + block.tokens == 24
                and block.verifications[-1].proposed < block.config.stages[-1].length
            )
    assert all(happened[what] for what in ("eos", "length", "accept", "reject", "bonus", "clip")), happened
    assert 0.2 < accepted / tested < 0.95


@pytest.mark.parametrize("lower", ["match", "fuzzy", "relaxed"])
def test_any_rule_below_a_matching_target(lower):
    family = graded_family("llama", 4)
    pyramid = AdaptivePyramid(family, method=Method("any", lower, "match", "tv"))
    loosened = 0
    for seed in range(4):
        expected = reference_ids(family[-1], PROMPT, seed, eos_token_id=EOS, **SETTINGS)
        out = pyramid.generate(PROMPT, seed=seed, eos_token_id=EOS, control=random_configs(4, seed), **SETTINGS)
        assert out.ids == expected
        loosened += sum(stage.relaxed for stage in out.stats.stages)
    assert (loosened > 0) == (lower != "match")


def test_neither_draft_nor_control_nor_history_changes_a_seeded_text():
    target = graded_family("llama", 2)[1]
    drafts = [
        graded_family("llama", 2)[0],
        tiny_model("llama", seed=9),
        tiny_model("gpt2", seed=3),
        target,
        PromptLookup(3, 1),
    ]
    expected = reference_ids(target, PROMPT, 7, eos_token_id=EOS, **SETTINGS)
    for draft in drafts:
        pyramid = AdaptivePyramid([draft, target])
        for control in ("auto", "fixed", random_configs(2, 1)):
            assert pyramid.generate(PROMPT, seed=7, control=control, eos_token_id=EOS, **SETTINGS).ids == expected
            pyramid.generate(
                PROMPT[::-1], seed=8, control=control, eos_token_id=EOS, **SETTINGS
            )  # another text in the caches
    assert AdaptivePyramid([target]).generate(PROMPT, seed=7, eos_token_id=EOS, **SETTINGS).ids == expected
    assert AdaptivePyramid([drafts[0], target]).generate(PROMPT, seed=6, eos_token_id=EOS, **SETTINGS).ids != expected


@pytest.mark.parametrize(
    "processing",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 20, "eos_token_id": list(range(40, 50))},
        {"bad_words_ids": [*([i] for i in range(4, 20)), [30, 31], [10, 11]]},
        {"typical_p": 0.8},
        {"epsilon_cutoff": 0.05},
        {"eta_cutoff": 0.05},
        {"min_p": 0.1},
        {"suppress_tokens": list(range(4, 40))},
        {"begin_suppress_tokens": list(range(20, 64))},
        {"sequence_bias": [[[8], 2.0], [[10, 11], -3.0]]},
        {"exponential_decay_length_penalty": (5, 1.5)},
        {"encoder_repetition_penalty": 1.5},
        {"forced_eos_token_id": EOS},
        {"renormalize_logits": True, "temperature": 1.3},
        {"encoder_no_repeat_ngram_size": 1},
        {"top_h": 0.6},
    ],
    ids=lambda processing: next(iter(processing)),
)
def test_every_processor_sees_the_right_prefix_in_every_tier(processing):
    family = graded_family("llama", 3)
    pyramid = AdaptivePyramid(family)
    plain = {**SETTINGS, "eos_token_id": processing.get("eos_token_id", EOS)}
    keywords = {**plain, **processing}
    # The model's own text as a prompt: it will want to say it again, so that rules against repetition have work to do.
    prompt = [1, *reference_ids(family[-1], [1], 0, **{**plain, "max_new_tokens": 40, "eos_token_id": None})]
    rejected = accepted = 0
    changed = False
    for seed in range(3):
        expected = reference_ids(family[-1], prompt, seed, **keywords)
        out = pyramid.generate(prompt, seed=seed, control=random_configs(3, seed), **keywords)
        assert out.ids == expected
        rejected += sum(stage.rejected for stage in out.stats.stages)
        accepted += sum(stage.accepted for stage in out.stats.stages)
        changed |= expected != reference_ids(family[-1], prompt, seed, **plain)
    assert rejected and accepted and (changed or "renormalize_logits" in processing)


def test_exact_sampling_is_reproducible_with_a_fixed_config_and_private():
    family = graded_family("llama", 3)
    pyramid = AdaptivePyramid(family, method="polybasic", config=PyramidConfig.simple([2, 3]))
    texts = [pyramid.generate(PROMPT, seed=seed, **SETTINGS).ids for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]
    unseeded = [pyramid.generate(PROMPT, **SETTINGS) for _ in range(2)]
    assert unseeded[0].ids != unseeded[1].ids
    assert (
        pyramid.generate(PROMPT, seed=unseeded[0].seed, **SETTINGS).ids == unseeded[0].ids
    )  # the reported seed is the real one
