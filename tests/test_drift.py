"""Drift: computed exactly, never beyond its budget at any prefix, and a true bound on how far outputs are from the target's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.decoding.drift import DriftBudget
from adaptive_pyramid.decoding.method import Method, resolve
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.stats import BlockStats, GenerationStats
from tests.tiny import EOS, graded_family, tiny_tokenizer
from tests.toys import (
    exact_distribution,
    sampled_outputs,
    total_variation,
    toy_decoder,
    toy_request,
    toy_tables,
    warped_distribution,
)

torch.set_num_threads(1)
RELAXED = [Method("relaxed", lower, "relaxed", "tv") for lower in ("exact", "match", "fuzzy", "relaxed")]


def within(drift: list[float], budget: float) -> bool:
    """sum of the first i drifts <= budget * i, for every i."""
    return bool((np.cumsum(drift) <= budget * np.arange(1, len(drift) + 1) * (1 + 1e-12)).all())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    n_tiers=st.integers(2, 4),
    world=st.integers(0, 5),
    method=st.sampled_from(RELAXED),
    seed=st.integers(0, 10**6),
    budget=st.sampled_from([0.0, 1e-3, 0.02, 0.1, 0.3, 1.0]),
    tau=st.sampled_from([0.05, 0.3, 1.0, 5.0]),
    do_sample=st.booleans(),
    eos=st.booleans(),
    new=st.integers(1, 40),
    temperature=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 2]),
)
def test_bucket_never_overdraws_at_any_prefix(
    n_tiers, world, method, seed, budget, tau, do_sample, eos, new, temperature, top_k
):
    decoder = toy_decoder(toy_tables(n_tiers, (0.8,), seed=world))
    rng = random.Random(seed)
    asked = toy_request(
        new,
        do_sample,
        seed,
        eos=(3,) if eos else (),
        **({"temperature": temperature, "top_k": top_k} if do_sample else {}),
    )
    decoding = decoder.start(asked, method, budget)
    drift, blocks = [], []
    while not decoding.finished:
        stages = tuple(
            StageConfig(rng.randint(1, 6), tau * rng.random(), rng.choice((None, 0.5))) for _ in range(n_tiers - 1)
        )
        block = decoding.step(PyramidConfig(stages, rng.choice(all_routes(n_tiers))))
        drift += block.stats.drift
        blocks.append(block.stats)
        assert block.stats.budget_left == pytest.approx(budget * len(drift) - sum(drift), abs=1e-9)
    assert len(drift) == len(decoding.new_ids)
    assert within(drift, budget)
    assert all(d >= 0 for d in drift)
    for block in blocks:
        # A drifting token is one that tau let through: its distance is at most tau, and its distribution was the proposer's.
        assert all(d <= block.config.stages[-1].tau for d in block.drift)


def test_a_relaxation_is_refused_only_when_it_would_overdraw():
    """A budget is worth having only if it is spent. With tau = 1 every position wants its relaxation."""
    decoder = toy_decoder(toy_tables(2, (0.8,), seed=1))
    for budget in (0.02, 0.05, 0.1):
        refused = granted = 0
        for seed in range(40):
            decoding = decoder.start(toy_request(30, seed=seed), RELAXED[0], budget)
            balance = 0.0
            while not decoding.finished:
                block = decoding.step(PyramidConfig.simple([3], [1.0])).stats
                verification = block.verifications[-1]
                for i, drift in enumerate(block.drift):
                    balance += budget
                    if i < verification.tested:
                        affordable = verification.distance[i] <= balance
                        assert drift == (pytest.approx(verification.distance[i]) if affordable else 0.0)
                        granted, refused = granted + affordable, refused + (not affordable)
                    balance -= drift
        assert granted > 50 and refused > 50


@pytest.mark.parametrize("method", ["fsd", RELAXED[0], RELAXED[1]], ids=str)
@pytest.mark.parametrize("do_sample", [True, False])
def test_reported_drift_is_the_distance_of_the_distribution_from_the_targets(method, do_sample):
    """Two tiers, so that the only distribution but the target's is the draft's: computed again here from the tables."""
    draft, target = toy_tables(2, (0.8,), seed=2)
    decoder = toy_decoder([draft, target])
    warping = {"temperature": 0.8, "top_k": 3} if do_sample else {}
    both = set()
    for seed in range(30):
        decoding = decoder.start(toy_request(20, do_sample, seed, prompt=(seed % 4, seed // 4 % 4), **warping), method)
        while not decoding.finished:
            at = len(decoding.sequence)
            block = decoding.step(PyramidConfig.simple([3], [0.3 if do_sample else 0.1 if method == "fsd" else 1.5]))
            ids = decoding.sequence.ids
            for i, d in enumerate(block.stats.drift):
                context = ids[at + i - 2], ids[at + i - 1]
                p, s = target[context].numpy(), draft[context].numpy()
                if do_sample:
                    distance = 0.5 * np.abs(warped_distribution(p, **warping) - warped_distribution(s, **warping)).sum()
                else:
                    distance = p.max() - p[ids[at + i]]
                    assert d == pytest.approx(distance, abs=1e-5)  # whatever let the token through
                if i < block.stats.verifications[-1].accepted:
                    assert d == 0 or d == pytest.approx(distance, abs=1e-5)
                else:
                    assert d == 0
                both.add(d > 0)
    assert both == {True, False}


NOISE_MARGIN = 1.25


def noise_floor(distribution: dict, runs: int) -> float:
    """Expected total variation of `runs` perfect draws from the distribution they were drawn from."""
    return sum(0.5 * np.sqrt(2 * p * (1 - p) / (np.pi * runs)) for p in distribution.values())


@pytest.mark.parametrize(
    ("method", "taus", "budget"),
    [
        (RELAXED[3], (0.25, 0.2), None),
        (RELAXED[3], (0.25, 1.0), 0.08),
        (Method("f", "fuzzy", "fuzzy", "tv"), (0.25, 0.2), None),
        (RELAXED[1], (0.0, 0.3), None),
        ("psd_f", (0.05, 0.03), None),
        (Method("r", "relaxed", "fuzzy", "tv"), (0.3, 0.25), None),
    ],
    ids=["relaxed", "budget", "fuzzy", "keyed", "psd_f", "relaxed under fuzzy"],
)
def test_measured_total_variation_is_within_the_reported_bound(method, taus, budget):
    tables = toy_tables(3, (0.6, 0.5), seed=7)
    decoder, distribution, runs = toy_decoder(tables), exact_distribution(tables[-1]), 1200
    drifts = []
    counts = sampled_outputs(
        decoder,
        PyramidConfig.simple([2, 3], taus),
        method,
        runs,
        drift_budget=budget,
        on_finish=lambda decoding, blocks: drifts.append(sum(d for block in blocks for d in block.drift)),
    )
    bound, measured, floor = (
        float(np.mean(drifts)),
        total_variation(counts, distribution),
        noise_floor(distribution, runs),
    )
    assert 0.02 < bound < 0.9
    assert measured <= bound + NOISE_MARGIN * floor
    assert measured > 1.1 * floor, "nothing drifted: this test would not notice a wrong bound"
    if budget is not None:
        assert bound <= 3 * budget


def test_drift_of_zero_budget_and_of_lossless_methods_is_zero():
    family = graded_family("llama", 3)
    expected = AdaptivePyramid(family[-1:]).generate([1, 10, 11], max_new_tokens=30, eos_token_id=None).ids
    config = PyramidConfig.simple([3, 4], [2.0, 2.0])
    for method, budget in (("pyramid", None), ("pyramid", 0.0), ("polybasic", None), (RELAXED[3], 0.0)):
        out = AdaptivePyramid(family).generate(
            [1, 10, 11], method=method, drift_budget=budget, config=config, max_new_tokens=30, eos_token_id=None
        )
        assert out.ids == expected
        assert out.stats.drift == [0.0] * 30
        assert out.stats.certificate.startswith("drift 0")
    drifted = AdaptivePyramid(family).generate(
        [1, 10, 11], drift_budget=0.3, config=config, max_new_tokens=30, eos_token_id=None
    )
    assert drifted.ids != expected and 0 < drifted.stats.mean_drift <= 0.3


def test_a_text_cut_by_a_stop_string_keeps_the_promise():
    """Only emitted tokens are booked: what a stop string cuts off neither earns nor spends."""
    family = graded_family("llama", 2, sigmas=(0.1,))
    pyramid = AdaptivePyramid(family, tiny_tokenizer())
    config, cut = PyramidConfig.simple([8], [3.0]), 0
    for start in range(4, 24):
        keywords = {"max_new_tokens": 24, "eos_token_id": [EOS], "drift_budget": 0.2, "config": config}
        whole = pyramid.generate([1, start, start + 1], **keywords)
        out = pyramid.generate(
            [1, start, start + 1], stop_strings=[tiny_tokenizer().decode(whole.ids[3:5])], **keywords
        )
        assert within(out.stats.drift, 0.2) and len(out.stats.drift) == len(out.ids)
        assert out.stats.drift == whole.stats.drift[: len(out.ids)]
        last = out.stats.blocks[-1]
        cut += last.verifications[-1].emitted > last.tokens
        assert last.budget_left == pytest.approx(0.2 * len(out.ids) - sum(out.stats.drift), abs=1e-9)
    assert cut > 5


def test_bucket_by_hand():
    bucket = DriftBudget(0.1)
    wanted = torch.tensor([True, True, True, False, True])
    drift = torch.tensor([0.05, 0.2, 0.1, 0.9, 0.3])
    # Allowances 0.1, 0.2, 0.3, 0.4, 0.5; the second would bring the sum to 0.25.
    assert bucket.grant(wanted, drift).tolist() == [True, False, True, False, True]
    bucket.book([0.05, 0.0, 0.1])
    assert bucket.balance == pytest.approx(0.15) and bucket.emitted == 3
    assert bucket.grant(torch.tensor([True, True]), torch.tensor([0.26, 0.25])).tolist() == [False, True]
    assert bucket.grant(torch.tensor([True]), torch.tensor([torch.inf])).tolist() == [False]
    assert bucket.grant(torch.zeros(0, dtype=torch.bool), torch.zeros(0)).tolist() == []
    with pytest.raises(ValueError, match="drift_budget must be"):
        DriftBudget(-0.1)


def test_budget_goes_with_methods_that_can_keep_one():
    assert resolve("pyramid", drift_budget=0.1).top == "relaxed"
    assert resolve("pyramid", seeded=True, drift_budget=0.0).top == "match"
    for method in ("sd", "polybasic", "ar"):
        with pytest.raises(ValueError, match="does not drift"):
            resolve(method, drift_budget=0.1)
    for method in ("fsd", "psd_a", "psd_f"):
        with pytest.raises(ValueError, match="has no bucket"):
            resolve(method, drift_budget=0.1)


def test_certificate_names_its_unit_and_says_when_it_is_vacuous():
    def stats(drift: list[float], unit: str) -> GenerationStats:
        block = BlockStats(
            PyramidConfig.simple([1]), 0, 3, len(drift), 1.0, drift=tuple(drift), origins=(0,) * len(drift)
        )
        return GenerationStats([block], "fsd", drift_unit=unit)

    assert "0.3 in total variation over 2 tokens (0.15 per token)" in stats([0.1, 0.2], "total variation").certificate
    assert "vacuous" in stats([0.6, 0.5], "total variation").certificate
    assert "vacuous" not in stats([0.6, 0.3], "total variation").certificate
    assert "1.1 nats of log-prob regret" in stats([0.6, 0.5], "nats").certificate
