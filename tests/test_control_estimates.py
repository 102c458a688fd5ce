"""What a block teaches about arms that it did not run, against environments where the truth is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.change_detection import PageHinkley
from adaptive_pyramid.control.controller import FixedController
from adaptive_pyramid.control.estimates import Estimates
from adaptive_pyramid.control.forecast import Forecast, Pair
from adaptive_pyramid.control.planner_settings import PlannerSettings
from adaptive_pyramid.stats import BlockStats, GenerationStats, Shadow, Verification
from adaptive_pyramid.throughput import WIDTHS
from tests.simulated import Regime, SimulatedEnvironment, run

COSTS = {tier: dict.fromkeys(WIDTHS, first) for tier, first in {0: 0.004, 1: 0.012, 2: 0.040}.items()}
TWO, CHAIN = (0, 2), (0, 1, 2)


def environment(**agreement: float) -> SimulatedEnvironment:
    return SimulatedEnvironment(
        COSTS, [Regime({0: agreement.get("draft", 0.7), 1: agreement.get("qualifier", 0.85)})], seed=5
    )


def learned(
    config: PyramidConfig,
    arms: list[PyramidConfig],
    tokens: int = 3000,
    budget: float | None = None,
    model_tiers=(0, 1, 2),
) -> tuple[Estimates, GenerationStats]:
    estimates = Estimates(
        Forecast([config, *arms]), model_tiers, budget, settings=PlannerSettings(memory=1e5, idle_memory=1e6)
    )
    text = estimates.begin()
    source = environment()
    source.drift_budget = budget
    stats = run(
        source,
        FixedController(config),
        tokens,
        on_block=lambda block: estimates.observe(block, greedy=True, arm=0, text=text),
    )
    return estimates, stats


def rate(estimates: Estimates, pair: Pair) -> float:
    i = estimates.pairs.index(pair)
    return estimates.accepted[i].sum() / estimates.tested[i].sum()


def truth(config: PyramidConfig, tier: int = 2, tokens: int = 3000, budget: float | None = None) -> float:
    source = environment()
    source.drift_budget = budget
    stats = run(source, FixedController(config), tokens)
    return next(stage.acceptance_rate for stage in stats.stages if stage.tier == tier)


def test_shorter_lengths_are_the_starts_of_longer_ones() -> None:
    estimates, _ = learned(PyramidConfig.simple([1, 8], route=TWO), [])
    accept = estimates.rates(0.0).accept[0, 0]
    for length in (1, 2, 4):
        stats = run(environment(), FixedController(PyramidConfig.simple([1, length], route=TWO)), 3000)
        assert 1 + np.cumprod(accept)[:length].sum() == pytest.approx(stats.stages[0].acceptance_length, rel=0.05)


def test_other_thresholds_are_judged_from_distances() -> None:
    taus = (0.0, 0.2, 1.0)
    arms = [PyramidConfig.simple([1, 6], [0.0, tau], route=TWO) for tau in taus]
    for ran in arms:
        estimates, _ = learned(ran, arms)
        for tau, arm in zip(taus, arms):
            assert rate(estimates, Pair(0, 2, tau)) == pytest.approx(truth(arm), abs=0.03), (ran.label, tau)


def test_a_budget_is_played_out_per_threshold() -> None:
    taus = (0.1, 3.0)
    arms = [PyramidConfig.simple([1, 6], [0.0, tau], route=TWO) for tau in taus]
    estimates, _ = learned(arms[0], arms, budget=0.1)
    for tau, arm in zip(taus, arms):
        assert rate(estimates, Pair(0, 2, tau)) == pytest.approx(truth(arm, budget=0.1), abs=0.04)


def test_a_chain_shows_the_pair_that_it_skips() -> None:
    estimates, _ = learned(PyramidConfig.simple([3, 5], route=CHAIN), [PyramidConfig.simple([1, 4], route=TWO)])
    assert rate(estimates, Pair(0, 2)) == pytest.approx(0.7, abs=0.06)
    assert rate(estimates, Pair(1, 2)) == pytest.approx(0.85, abs=0.03)


def test_a_chain_with_thresholds_shows_its_middle_tier_without_them() -> None:
    estimates, _ = learned(
        PyramidConfig.simple([3, 5], [0.5, 0.0], route=CHAIN), [PyramidConfig.simple([1, 4], route=(1, 2))]
    )
    assert rate(estimates, Pair(1, 2)) == pytest.approx(0.85, abs=0.05)
    assert rate(estimates, Pair(1, 2, 0.0, (0.5,))) < 0.83


def test_relatives_inform_the_first_guess() -> None:
    two_tier = [PyramidConfig.simple([1, 4], route=route) for route in ((0, 2), (1, 2))]
    estimates, _ = learned(two_tier[0], [two_tier[1], PyramidConfig.simple([3, 5], route=CHAIN)])
    text = estimates.begin()
    run(
        environment(),
        FixedController(two_tier[1]),
        1500,
        on_block=lambda block: estimates.observe(block, greedy=True, arm=0, text=text),
    )
    guess = estimates.rates(0.0).accept[0, estimates.pairs.index(Pair(0, 1)), 0]
    assert guess == pytest.approx(truth(PyramidConfig.simple([3, 5], route=CHAIN), tier=1), abs=0.06)


def test_without_counterfactuals_an_arm_learns_from_itself_alone() -> None:
    arms = [PyramidConfig.simple([1, length], route=TWO) for length in (2, 4)]
    estimates = Estimates(Forecast(arms, owners=[0, 1]), (0, 1, 2), counterfactual=False)
    text = estimates.begin()
    run(
        environment(),
        FixedController(arms[1]),
        300,
        on_block=lambda block: estimates.observe(block, greedy=True, arm=1, text=text),
    )
    assert estimates.tested[estimates.pairs.index(Pair(0, 2, owner=1))].sum() > 50
    assert estimates.tested[estimates.pairs.index(Pair(0, 2, owner=0))].sum() == 0


def test_lookups_are_hit_or_miss() -> None:
    costs = {1: COSTS[1], 2: COSTS[2]}
    config = PyramidConfig.simple([1, 6], route=((0, 1), 2))
    estimates = Estimates(Forecast([config]), (1, 2), settings=PlannerSettings(memory=1e5, idle_memory=1e6))
    text = estimates.begin()
    source = SimulatedEnvironment(costs, [Regime({0: 0.6, 1: 0.85}, hit={0: 0.35})], seed=2)
    run(
        source,
        FixedController(config),
        3000,
        on_block=lambda block: estimates.observe(block, greedy=True, arm=0, text=text),
    )
    assert estimates.rates(0.0).hit[0, 0] == pytest.approx(0.35, abs=0.04)
    assert rate(estimates, Pair(0, 2)) == pytest.approx(0.6, abs=0.05)
    assert rate(estimates, Pair(1, 2)) == pytest.approx(0.85, abs=0.05)


def test_lookups_hit_in_runs() -> None:
    config = PyramidConfig.simple([4], route=(0, 1))
    estimates = Estimates(Forecast([config]), (1,))
    text = estimates.begin()

    def show(proposed: int, accepted: int) -> None:
        verification = Verification(
            1, 0 if proposed else None, proposed, accepted, int(accepted < proposed), accepted + 1, 0, (), (), (), ()
        )
        estimates.observe(BlockStats(config, 0, 10, accepted + 1, 0.1, (verification,)), greedy=True, arm=0, text=text)

    for _ in range(30):  # copied for three blocks, then refused and silent for three
        for proposed, accepted in ((4, 4), (4, 4), (4, 4), (4, 0), (0, 0), (0, 0), (0, 0)):
            show(proposed, accepted)
    show(4, 4)
    copying = estimates.rates(0.0).hit[2 * estimates.context_bucket(text), 0]
    show(4, 0)
    refused = estimates.rates(0.0).hit[2 * estimates.context_bucket(text), 0]
    assert copying > 0.8 and refused < 0.4


def test_sampling_replaces_draws_by_chances() -> None:
    """Positions behind a refusal that a higher threshold would have let pass count with their chances."""
    arms = [PyramidConfig.simple([4], [tau], route=(0, 1)) for tau in (0.0, 0.3)]
    estimates = Estimates(Forecast(arms), (0, 1), settings=PlannerSettings(memory=1e9, idle_memory=1e9))
    text = estimates.begin()
    nan = math.nan
    verification = Verification(
        1,
        0,
        4,
        1,
        1,
        2,
        0,
        entropy=(nan,) * 5,
        proposal_entropy=(nan,) * 4,
        divergence=(0.2, 0.25, 0.5, 0.1),
        distance=(0.2, 0.25, 0.5, 0.1),
    )
    estimates.observe(BlockStats(arms[0], 0, 10, 2, 0.1, (verification,)), greedy=False, arm=0, text=text)
    plain, relaxed = (estimates.pairs.index(Pair(0, 1, tau)) for tau in (0.0, 0.3))
    assert (estimates.accepted[plain].sum(), estimates.tested[plain].sum()) == (1, 2)
    # the first two pass for certain, the third by chance .5, and only then is there a fourth
    assert estimates.tested[relaxed].sum() == pytest.approx(3.5)
    assert estimates.accepted[relaxed].sum() == pytest.approx(2 + 0.5 + 0.5)


def test_a_change_of_text_is_noticed_and_no_change_is_not() -> None:
    config = PyramidConfig.simple([1, 4], route=TWO)
    steady = Estimates(Forecast([config]), (0, 1, 2))
    text = steady.begin()
    run(
        environment(),
        FixedController(config),
        1500,
        on_block=lambda block: steady.observe(block, greedy=True, arm=0, text=text),
    )
    assert steady.changes <= 1
    shifting = Estimates(Forecast([config]), (0, 1, 2))
    text = shifting.begin()
    source = SimulatedEnvironment(COSTS, [Regime({0: 0.9, 1: 0.9}, tokens=500), Regime({0: 0.3, 1: 0.9})], seed=5)
    run(
        source,
        FixedController(config),
        560,
        on_block=lambda block: shifting.observe(block, greedy=True, arm=0, text=text),
    )
    assert shifting.changes >= 1
    assert shifting.rates(0.0).accept[:, 0, 0].min() < 0.6


def test_old_verifications_fade() -> None:
    config = PyramidConfig.simple([4], route=(0, 1))
    estimates = Estimates(Forecast([config]), (0, 1), settings=PlannerSettings(memory=10.0))
    text = estimates.begin()

    def show(accepted: int, times: int) -> None:
        verification = Verification(1, 0, 4, accepted, int(accepted < 4), accepted + 1, 0, (), (), (), ())
        for _ in range(times):
            estimates.observe(
                BlockStats(config, 0, 10, accepted + 1, 0.1, (verification,)), greedy=True, arm=0, text=text
            )

    show(4, 100)
    assert estimates.tested[0].sum() == pytest.approx(4 / (1 - math.exp(-0.1)), rel=0.05)
    show(0, 20)
    assert rate(estimates, Pair(0, 1)) < 0.5


def test_page_hinkley() -> None:
    test = PageHinkley(slack=0.1, threshold=1.0)
    assert not any(test.observe(0.1) for _ in range(100))
    assert [test.observe(-0.6) for _ in range(4)] == [False, False, True, False]


def test_state() -> None:
    config = PyramidConfig.simple([1, 6], route=TWO)
    estimates, _ = learned(config, [], tokens=200)
    other = Estimates(Forecast([config]), (0, 1, 2))
    other.load_state_dict(json.loads(json.dumps(estimates.state_dict())))
    assert (other.rates(0.5).accept == estimates.rates(0.5).accept).all()
    foreign = Estimates(Forecast([config.with_route((1, 2))]), (0, 1, 2))
    with pytest.raises(ValueError, match="this state has estimates for"):
        foreign.load_state_dict(estimates.state_dict())


def test_shadows_teach_what_asking_would_have_taught() -> None:
    config = PyramidConfig.simple([4, 4], route=(1, 2))
    estimates = Estimates(Forecast([config, config.with_route((0, 2))]), model_tiers=(1, 2))
    text = estimates.begin()
    before = estimates.rates(0.0)
    for _ in range(60):
        estimates.observe(
            BlockStats(config, 0, 10, 3, 0.1, shadows=(Shadow(0, 16, 3, 3),)), greedy=True, arm=0, text=text
        )
    after = estimates.rates(0.0)
    pair = estimates.pairs.index(Pair(0, 2))
    row = 2 * estimates.context_bucket(text)
    assert after.accept[row, pair, 0] > 0.9 > before.accept[row, pair, 0]
    assert after.hit[row, 0] > 0.9 > before.hit[row, 0]
    own = Estimates(Forecast([config, config.with_route((0, 2))], [0, 1]), model_tiers=(1, 2), counterfactual=False)
    text = own.begin()
    for _ in range(60):
        own.observe(BlockStats(config, 0, 10, 3, 0.1, shadows=(Shadow(0, 16, 3, 3),)), greedy=True, arm=0, text=text)
    assert own.rates(0.0).hit[0, 0] < 0.9, "without counterfactuals an arm learns from its own blocks alone"
