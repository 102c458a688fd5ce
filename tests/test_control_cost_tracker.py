"""Prices: what blocks teach of forward times, overheads and caches left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import RequestInfo
from adaptive_pyramid.control.cost_tracker import CostTracker, RequestCosts
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.stats import BlockStats, Decision, Forward, GenerationStats, Verification
from adaptive_pyramid.throughput import CostModel

COSTS = {0: {1: 0.01, 8: 0.02}, 1: {1: 0.1, 8: 0.2}}
TWO = PyramidConfig.simple([4], route=(0, 1))
ALONE = TWO.with_route((1,))


def verification(proposed: int, accepted: int) -> Verification:
    return Verification(
        1, 0 if proposed else None, proposed, accepted, int(accepted < proposed), accepted + 1, 0, (), (), (), ()
    )


def block(
    config: PyramidConfig, forwards: list[Forward], tokens: int, context: int, outside: float = 0.0
) -> BlockStats:
    return BlockStats(
        config,
        0,
        context,
        tokens,
        sum(f.seconds for f in forwards) + outside,
        (verification(len(forwards) - 1, tokens - 1),),
        tuple(forwards),
    )


def tracker(measured: bool = True) -> RequestCosts:
    return CostTracker(Pool(2, (0, 1), CostModel(COSTS), measured)).begin(RequestInfo(100, 50))


def test_the_first_look_scales_everything_that_nobody_has_seen() -> None:
    costs = CostModel(COSTS)
    costs.observe(1, 1, 0.3)
    assert costs.table[1] == pytest.approx({1: 0.3, 8: 0.6}) and costs.table[0] == pytest.approx({1: 0.03, 8: 0.06})
    costs.observe(1, 1, 0.2)  # of the first two the faster
    assert costs.table[1][1] == pytest.approx(0.2) and costs.table[0][1] == pytest.approx(0.02)
    costs.observe(1, 1, 0.4)  # then slowly
    assert costs.table[1][1] == pytest.approx(0.22)
    costs.observe(1, 8, 0.9)  # a width never seen bends the row
    assert costs.table[1] == pytest.approx({1: 0.22, 8: 0.9})
    assert costs.observed(1) == 4 and costs.observed(0) == 0
    costs.observe(5, 1, 1.0)  # a tier without a model costs nothing
    assert costs.seconds(5, 1) == 0


def test_outliers_hardly_move_the_table() -> None:
    costs = CostModel(COSTS)
    for seconds in (0.1, 0.1, 100.0):
        costs.observe(1, 1, seconds)
    assert costs.table[1][1] == pytest.approx(0.11)


def test_calibration() -> None:
    assert tracker().shared.calibrated
    guessed = tracker(measured=False)
    for _ in range(2):
        assert not guessed.shared.calibrated
        guessed.observe(block(ALONE, [Forward(1, 1, 1, 100, 0.1)], 1, 100))
    assert guessed.shared.calibrated


def test_target_only_time_is_learned_between_models_too() -> None:
    seen = tracker()
    for _ in range(60):
        seen.observe(block(ALONE, [Forward(1, 1, 1, 100, 0.1)], 1, 100, outside=0.004))
        drafts = [Forward(0, 1, 1, 100 + i, 0.01) for i in range(4)]
        seen.observe(block(TWO, [*drafts, Forward(1, 5, 5, 100, 0.157)], 3, 100, outside=0.004 + 4 * 0.001))
    assert seen.shared.target_only == pytest.approx(0.104, rel=0.01)
    assert seen.shared.per_draft == pytest.approx(0.001, rel=0.1)


def test_prefill_is_no_fault_of_the_block() -> None:
    seen = tracker()
    forwards = [Forward(0, 100, 1, 0, 0.3), Forward(0, 1, 1, 100, 0.01), Forward(1, 102, 3, 0, 2.0)]
    prefill = block(TWO, forwards, 2, 100)
    seen.observe(prefill)
    assert seen.shared.steady(prefill) == pytest.approx(0.01 + 0.01 + seen.shared.costs.seconds(1, 3))
    # target-only decoding would have paid for the target's prefill, not for the draft's
    assert seen.shared.target_only_seconds(prefill) == pytest.approx(
        2 * seen.shared.target_only + 2.0 - seen.shared.costs.seconds(1, 3)
    )
    assert seen.shared.target_only_seconds(block(ALONE, [Forward(1, 1, 1, 100, 0.123)], 1, 100)) == 0.123


def test_long_forwards_are_priced_by_the_targets_own() -> None:
    seen = tracker()
    before = seen.catch_up((0,))
    seen.observe(block(ALONE, [Forward(1, 100, 1, 0, 3 * seen.shared.costs.seconds(1, 100))], 1, 100))
    assert seen.catch_up((0,)) == pytest.approx(3 * (before + 0.01) - 0.01, rel=0.05)


def test_entry_grows_with_the_lag_of_a_cache() -> None:
    seen = tracker()
    cold = seen.catch_up((0,))
    assert cold == pytest.approx(seen.shared.costs.seconds(0, 100) - 0.01)
    seen.observe(block(TWO, [Forward(0, 100, 1, 0, 0.15), Forward(1, 101, 2, 0, 1.0)], 1, 100))
    assert seen.catch_up((0,)) == 0
    for i in range(20):
        seen.observe(block(ALONE, [Forward(1, 1, 1, 101 + i, 0.1)], 1, 101 + i))
    assert 0 < seen.catch_up((0,)) < cold
    assert seen.catch_up((1,)) == 0
    lag_of_40 = seen.shared.begin(RequestInfo(100, 50, reused=60)).catch_up((0,))
    assert 0 < lag_of_40 < seen.shared.begin(RequestInfo(100, 50)).catch_up((0,))


def test_worst_case_of_a_block() -> None:
    costs = {0: {1: 1.0}, 1: {1: 10.0}, 2: {1: 100.0}}
    seen = CostTracker(Pool(3, (0, 1, 2), CostModel(costs), True)).begin(RequestInfo(1, 50))
    assert seen.worst_case(PyramidConfig.simple([4, 6], route=(2,))) == 100
    assert seen.worst_case(PyramidConfig.simple([4, 6], route=(0, 2))) == 6 + 100
    # the qualifier refuses every first token: six rounds of four drafts each
    assert seen.worst_case(PyramidConfig.simple([4, 6])) == 6 * (4 + 10) + 100
    assert seen.worst_case(PyramidConfig.simple([4, 6], route=((0, 1), 2))) == 6 * 10 + 100


def test_prediction_alarm() -> None:
    def stats(error: float) -> GenerationStats:
        decision = Decision(ALONE, "because", 0.1 * (1 + error), 1.0)
        made = block(ALONE, [Forward(1, 1, 1, 10, 0.1)], 1, 10)
        return GenerationStats(blocks=[replace(made, decision=decision)])

    assert stats(0.1).prediction_error == pytest.approx(0.1)
    assert "ALARM" not in stats(0.2).explain()
    assert "ALARM" in stats(0.3).explain() and "because" in stats(0.3).explain()
    assert "predicted to" not in GenerationStats(blocks=[block(ALONE, [Forward(1, 1, 1, 10, 0.1)], 1, 10)]).explain()


def test_a_table_that_noise_has_bent_prices_no_long_prompt_below_zero() -> None:
    bent = CostModel({0: {1: 0.04, 8: 0.05, 64: 0.03}})
    assert bent.seconds(0, 64) == bent.seconds(0, 5000) == 0.03
    assert CostModel({0: {1: 0.04, 8: 0.05}}).seconds(0, 15) == pytest.approx(0.06)
