"""The vectorised throughput formula against the plain one, and against environments."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import FixedController
from adaptive_pyramid.control.forecast import Forecast, Pair, Rates, pairs_of
from adaptive_pyramid.throughput import WIDTHS, Acceptance, CostModel, ThroughputModel
from tests.simulated import Regime, SimulatedEnvironment, run

COSTS = {
    tier: {width: first * (1 + 0.03 * (width - 1)) for width in WIDTHS}
    for tier, first in {1: 0.004, 2: 0.012, 3: 0.040}.items()
}
ACCEPTANCE = {
    (0, 3): Acceptance(0.6, hit=0.4, fill=0.75),
    (1, 3): Acceptance(0.7),
    (2, 3): Acceptance(0.9),
    (1, 2): Acceptance(0.72),
}


def rates(forecast: Forecast, acceptance: dict[tuple[int, int], Acceptance], n_tiers: int) -> Rates:
    accept = np.array([[[acceptance[pair[:2]].rate] * forecast.longest for pair in forecast.pairs]])
    by_tier = {proposer: known for (proposer, _), known in acceptance.items()}
    hit = np.array([[by_tier[tier].hit if tier in by_tier else 1.0 for tier in range(n_tiers)]])
    return Rates(accept, hit, np.array([by_tier[tier].fill if tier in by_tier else 1.0 for tier in range(n_tiers)]))


def test_equals_the_formula_where_no_mid_tier_overshoots() -> None:
    configs = [
        PyramidConfig.simple([1, 1, length], route=route)
        for route in ((3,), (0, 3), (1, 3), (2, 3), ((0, 1), 3))
        for length in (1, 4, 8, 16)
    ]
    forecast = Forecast(configs)
    tokens, seconds = forecast.evaluate(
        rates(forecast, ACCEPTANCE, 4), forecast.costs(CostModel(COSTS), per_verification=0.002)
    )
    formula = ThroughputModel(CostModel(COSTS), ACCEPTANCE, overhead=0.002)
    for i, config in enumerate(configs):
        expected = formula.predict(config)
        assert tokens[0, i] == pytest.approx(expected.tokens), config.label
        assert seconds[0, i] == pytest.approx(expected.seconds), config.label


@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (2, 4), (4, 6), (4, 8)])
def test_deep_chains_are_forecast_within_four_per_cent_of_a_simulation(lengths: tuple[int, int]) -> None:
    costs = {0: COSTS[1], 1: COSTS[2], 2: COSTS[3]}
    config = PyramidConfig.simple(lengths)
    environment = SimulatedEnvironment(costs, [Regime({0: 0.7, 1: 0.9})], seed=3, noise=0.0)
    stats = run(environment, FixedController(config), 6000, prompt_length=1)
    measured = {stage.tier: Acceptance(stage.acceptance_rate) for stage in stats.stages}
    forecast = Forecast([config])
    acceptance = {(0, 1): measured[1], (1, 2): measured[2]}
    tokens, seconds = forecast.evaluate(rates(forecast, acceptance, 3), forecast.costs(CostModel(costs)))
    assert tokens[0, 0] / seconds[0, 0] == pytest.approx(stats.tokens_per_second, rel=0.04)


def test_acceptance_may_depend_on_the_position() -> None:
    config = PyramidConfig.simple([3], route=(0, 1))
    forecast = Forecast([config])
    accept = np.full((1, 1, forecast.longest), 0.5)
    accept[0, 0, :3] = (0.9, 0.6, 0.2)
    tokens, _ = forecast.evaluate(
        Rates(accept, np.ones((1, 2)), np.ones(2)), forecast.costs(CostModel({0: {1: 1.0}, 1: {1: 1.0}}))
    )
    assert tokens[0, 0] == pytest.approx(1 + 0.9 + 0.9 * 0.6 + 0.9 * 0.6 * 0.2)


def test_pairs() -> None:
    config = PyramidConfig.simple([4, 4, 6], [0.1, 0.0, 0.3], route=(0, 1, 3))
    assert pairs_of(config, 1) == [Pair(0, 1, 0.1)]
    assert pairs_of(config, 2) == [Pair(1, 3, 0.3, (0.1,))]
    assert pairs_of(config.with_route(((0, 2), 3)), 1) == [Pair(0, 3, 0.3), Pair(2, 3, 0.3)]


def test_costs_beyond_a_table_whose_last_slope_falls_stay_flat() -> None:
    """Noise can turn a slope; a wide forward must not cost less than the widest one measured, nor less than nothing."""
    costs = CostModel({0: {1: 0.001}, 1: {1: 0.010, 4: 0.030, 8: 0.020}})
    config = PyramidConfig.simple([40])
    table = Forecast([config]).costs(costs)
    assert table.shape[1] > 40
    assert table[1, 8:].tolist() == [0.020] * (table.shape[1] - 8)
    expected = [costs.seconds(1, width) for width in range(1, table.shape[1])]
    np.testing.assert_allclose(table[1, 1:], expected, rtol=1e-12)
    rising = CostModel({1: {1: 0.010, 4: 0.020, 8: 0.040}})
    assert rising.curve(1, 12).tolist() == [rising.seconds(1, width) for width in range(13)]
    assert rising.curve(1, 12)[12] == pytest.approx(0.060)
