"""The planner on simulated environments. Modelled time only; nothing here looks at a clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from adaptive_pyramid.control.controller import FixedController
from adaptive_pyramid.control.factory import Pool, default_config, make_controller
from adaptive_pyramid.control.planner import PlannerController
from adaptive_pyramid.control.planner_settings import PlannerSettings
from adaptive_pyramid.throughput import WIDTHS, CostModel
from benchmarks import planner_settings
from tests.simulated import Regime, SimulatedEnvironment, run


def row(first: float, slope: float = 0.01) -> dict[int, float]:
    return {width: first * (1 + slope * (width - 1)) for width in WIDTHS}


COSTS = {0: row(0.004), 1: row(0.012), 2: row(0.040)}
LOOKUP_COSTS = {1: row(0.006), 2: row(0.040, 0.02)}


def planner(costs=COSTS, measured: bool = True, budget: float | None = None, **options) -> PlannerController:
    models = tuple(sorted(costs))
    weights = {tier: int(1e9 * costs[tier][1]) for tier in models}
    pool = Pool(3, models, CostModel(costs), True) if measured else Pool.of(3, weights, None)
    made = make_controller("planner", None, default_config(3), pool, budget)
    return PlannerController(made.arms, pool, budget, **options) if options else made


def speed(environment: SimulatedEnvironment, controller, requests: int = 4, tokens: int = 250) -> float:
    total = sum(run(environment, controller, tokens, 32).seconds for _ in range(requests))
    return requests * tokens / total


def best_static(make_environment: Callable[[], SimulatedEnvironment], controller: PlannerController) -> float:
    return max(speed(make_environment(), FixedController(arm)) for arm in controller.arms)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("agreement", [(0.02, 0.02), (0.75, 0.9), (0.4, 0.9), (0.93, 0.95)])
def test_comes_close_to_the_best_arm_from_a_cold_start(agreement: tuple[float, float], measured: bool) -> None:
    def make_environment() -> SimulatedEnvironment:
        return SimulatedEnvironment(COSTS, [Regime({0: agreement[0], 1: agreement[1]})], seed=2)

    controller = planner(measured=measured)
    best = best_static(make_environment, controller)
    assert speed(make_environment(), controller) > 0.9 * best


def test_beats_every_fixed_arm_on_a_text_that_changes() -> None:
    def make_environment() -> SimulatedEnvironment:
        kinds = ((0.95, 0.97), (0.05, 0.2), (0.9, 0.95), (0.05, 0.85))
        return SimulatedEnvironment(
            COSTS, [Regime({0: draft, 1: qualifier}, tokens=250) for draft, qualifier in kinds], seed=4
        )

    controller = planner()
    best = best_static(make_environment, controller)
    assert speed(make_environment(), controller) > 1.03 * best
    assert controller.estimates.changes >= 2


def test_lengthens_on_repetitive_text() -> None:
    environment = SimulatedEnvironment(LOOKUP_COSTS, [Regime({0: 0.97, 1: 0.6}, hit={0: 0.9})], seed=1)
    controller = planner(LOOKUP_COSTS)
    run(environment, controller, 400, 64)
    stats = run(environment, controller, 400, 64)
    used = [block.config for block in stats.blocks if len(block.config.route) > 1]
    assert sum(config.stages[-1].length >= 8 for config in used) > 0.9 * len(stats.blocks)


def test_context_buckets_pay_on_bursty_text() -> None:
    def total(**options) -> float:
        return sum(
            speed(
                SimulatedEnvironment(COSTS, [Regime({0: 0.7, 1: 0.85}, burstiness=0.9)], seed=seed), planner(**options)
            )
            for seed in range(4)
        )

    assert total() > 1.03 * total(settings=PlannerSettings(context_weight=1e9))


@pytest.mark.parametrize(
    "field, value, error, message",
    [
        ("memory", 0.0, ValueError, "PlannerSettings.memory"),
        ("residual_memory", 0.5, ValueError, "PlannerSettings.residual_memory"),
        ("replan_every", 0, ValueError, "PlannerSettings.replan_every must be at least 1, got 0"),
        ("tuned_factor", 1.5, ValueError, "PlannerSettings.tuned_factor"),
        ("context_fade", (1.0, 0.5), ValueError, "PlannerSettings.context_fade must be a tuple of 6 numbers"),
        ("optimism", "much", TypeError, "PlannerSettings.optimism"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field: str, value, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        PlannerSettings(**{field: value})


def test_every_setting_can_be_halved_and_doubled_in_the_benchmark() -> None:
    for field in dataclasses.fields(PlannerSettings):
        for factor in (0.5, 2.0):
            assert planner_settings.scaled(field.name, factor) != PlannerSettings()
    base = [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}]
    mean, error, worst, where = planner_settings.change([{"a": 1.02, "b": 0.98}, {"a": 1.04, "b": 1.0}], base)
    assert (mean, error, worst, where) == (pytest.approx(1.0), pytest.approx(1.0), pytest.approx(-1.0), "b")


def test_counterfactuals_save_time() -> None:
    def seconds(counterfactual: bool) -> float:
        total = 0.0
        for agreement in ((0.02, 0.02), (0.4, 0.9), (0.75, 0.9), (0.93, 0.95)):
            for seed in range(3):
                environment = SimulatedEnvironment(COSTS, [Regime({0: agreement[0], 1: agreement[1]})], seed=seed)
                total += run(environment, planner(counterfactual=counterfactual), 400, 32).seconds
        return total

    assert seconds(True) < 0.99 * seconds(False)


def test_a_drift_budget_is_spent_and_buys_speed() -> None:
    def make_environment(budget: float | None) -> SimulatedEnvironment:
        return SimulatedEnvironment(COSTS, [Regime({0: 0.6, 1: 0.8})], seed=6, drift_budget=budget)

    lossless = speed(make_environment(None), planner())
    environment, controller = make_environment(0.1), planner(budget=0.1)
    run(environment, controller, 250, 32)
    stats = run(environment, controller, 400, 32)
    assert 0.05 < stats.mean_drift <= 0.1
    assert min(block.budget_left for block in stats.blocks) >= 0
    assert stats.tokens_per_second > 1.1 * lossless


def test_every_block_carries_its_reason_and_a_good_prediction() -> None:
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.75, 1: 0.9})], seed=1)
    stats = run(environment, planner(), 400)
    assert all(block.decision.reason for block in stats.blocks)
    assert all(block.decision.predicted_tokens > 0 for block in stats.blocks)
    assert stats.prediction_error < 0.15
    text = stats.explain(last=5)
    assert "tokens/s expected" in text and "block times were predicted to" in text and "ALARM" not in text


def test_insertion_advice_is_in_the_notes() -> None:
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.7, 1: 0.97})], seed=1)
    stats = run(environment, planner(), 600)
    assert any(len(block.config.route) == 3 for block in stats.blocks)
    assert any("insertion theorem" in note for note in stats.notes)


def test_state_goes_on_where_it_was_saved() -> None:
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.93, 1: 0.95})], seed=1)
    first, second = planner(), planner()
    run(environment, first, 400)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    stats = run(environment, second, 300)
    assert sum(len(block.config.route) == 1 for block in stats.blocks) == 0
    assert sum(block.config.stages[-1].length >= 6 for block in stats.blocks) > 0.8 * len(stats.blocks)
    with pytest.raises(ValueError, match="belongs to other arms"):
        planner(LOOKUP_COSTS).load_state_dict(first.state_dict())


def test_controllers_repeat_themselves() -> None:
    def configs() -> list[str]:
        environment = SimulatedEnvironment(COSTS, [Regime({0: 0.7, 1: 0.9})], seed=8)
        return [block.config.label for block in run(environment, planner(), 300).blocks]

    assert configs() == configs()


def test_a_draft_that_could_not_pay_for_its_prefill_any_more_stays_out() -> None:
    def used(prompt: int, tokens: int) -> bool:
        source = SimulatedEnvironment(COSTS, [Regime({0: 0.9, 1: 0.9})], seed=1)
        controller = planner()
        for _ in range(3):
            run(source, controller, 400, 32)
        stats = run(source, controller, tokens, prompt)
        return any(0 in block.config.tiers for block in stats.blocks)

    assert used(prompt=2000, tokens=400)
    assert not used(prompt=2000, tokens=2)


def test_an_arm_cut_short_for_money_is_weighed_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = planner()
    source = SimulatedEnvironment(COSTS, [Regime({0: 0.93, 1: 0.95})], seed=1)
    for _ in range(2):
        run(source, controller, 400, 32)
    request = controller.begin(source.start(1, 400))
    assert request.choose().config.stages[-1].length > 4
    # Credit for a block of length 1 alone: it runs if it promises more than the target, and only then.
    cheapest = min(map(request._price, controller.probes.values()))
    monkeypatch.setattr(controller.budget, "left", lambda ahead: 1.01 * cheapest)
    cut = request.choose().config
    assert {stage.length for stage in cut.normalized().stages} == {1} and len(cut.route) > 1
    plain = request._optimistic(controller.arms[controller.fallback])
    monkeypatch.setattr(request, "_optimistic", lambda config: 2 * plain if len(config.route) > 1 else plain)
    assert request.choose().config.route == (2,)


def test_first_steps_are_short() -> None:
    controller = planner()
    stats = run(SimulatedEnvironment(COSTS, [Regime({0: 1.0, 1: 1.0})], seed=1), controller, 100)
    drafted = [block.config.stages[-1].length for block in stats.blocks if block.config.route == (0, 2)]
    assert drafted[:4] == [1, 2, 4, 8]
    refused = planner()
    stats = run(SimulatedEnvironment(COSTS, [Regime({0: 0.0, 1: 0.0})], seed=1), refused, 300)
    lengths = [stage.length for block in stats.blocks for stage in block.config.normalized().stages]
    assert max(lengths) == 1 and any(len(block.config.route) > 1 for block in stats.blocks)


def test_a_pinned_route_only_varies_lengths() -> None:
    pool = Pool(3, (0, 1, 2), CostModel(COSTS), True)
    controller = make_controller("planner", (0, 1, 2), default_config(3).with_stage(2, tau=0.3), pool)
    stats = run(SimulatedEnvironment(COSTS, [Regime({0: 0.1, 1: 0.1})], seed=1), controller, 100)
    assert {block.config.route for block in stats.blocks} == {(0, 1, 2)}
    assert {block.config.tau_T for block in stats.blocks} == {0.3}
    assert len({block.config for block in stats.blocks}) > 1
