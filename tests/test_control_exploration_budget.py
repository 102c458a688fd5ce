"""Never slower: at every block, time above target-only decoding stays within the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_pyramid.control.exploration_budget import ExplorationBudget
from adaptive_pyramid.control.factory import Pool, default_config, make_controller
from adaptive_pyramid.stats import BlockStats
from adaptive_pyramid.throughput import WIDTHS, CostModel
from tests.simulated import Regime, SimulatedEnvironment, run


def row(first: float, slope: float) -> dict[int, float]:
    return {width: first * (1 + slope * (width - 1)) for width in WIDTHS}


def overdrafts(environment: SimulatedEnvironment, controller, requests: int, tokens: int, prompt: int) -> list[float]:
    """Per block: seconds lost so far against target-only decoding, less 2 % of the elapsed ones."""
    alone = environment.costs.seconds(environment.target, 1) + environment.overhead
    lost, elapsed, found = 0.0, 0.0, []

    def book(block: BlockStats) -> None:
        nonlocal lost, elapsed
        prefill = sum(
            f.seconds - environment.costs.seconds(f.tier, f.needed)
            for f in block.forwards
            if f.tier == environment.target and f.is_prefill
        )
        lost += block.seconds - prefill - alone * block.tokens
        elapsed += block.seconds
        found.append(lost - 0.02 * elapsed)

    for _ in range(requests):
        run(environment, controller, tokens, prompt, on_block=book)
    return found


def shortest_probes(environment: SimulatedEnvironment, drafts: list[int], context: int) -> list[float]:
    """What the first look at each draft costs if it is refused, with `context` tokens to catch up with."""
    return [
        environment.costs.seconds(tier, context) + environment.costs.seconds(2, 2) - environment.costs.seconds(2, 1)
        for tier in drafts
    ]


environments = st.fixed_dictionaries(
    {
        "draft": st.floats(0.05, 1.2),
        "qualifier": st.floats(0.05, 1.2),
        "slope": st.floats(0.0, 0.3),
        "agree_draft": st.floats(0.0, 0.9),
        "agree_qualifier": st.floats(0.0, 0.9),
        "prompt": st.integers(1, 300),
        "tokens": st.integers(20, 200),
        "seed": st.integers(0, 1000),
        "shift": st.booleans(),
        "name": st.sampled_from(["planner", "thompson", "exp3", "epsilon_greedy"]),
    }
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=environments)
def test_the_budget_is_never_overdrawn(case: dict) -> None:
    costs = {
        0: row(0.04 * case["draft"], case["slope"]),
        1: row(0.04 * case["qualifier"], case["slope"]),
        2: row(0.04, case["slope"]),
    }
    regimes = [Regime({0: case["agree_draft"], 1: case["agree_qualifier"]}, tokens=150), Regime({0: 0.0, 1: 0.0})]
    environment = SimulatedEnvironment(
        costs, regimes if case["shift"] else regimes[:1], seed=case["seed"], noise=0.0, overhead=0.0
    )
    controller = make_controller(
        case["name"], None, default_config(3), Pool(3, (0, 1, 2), CostModel(costs), measured=True)
    )
    worst = max(overdrafts(environment, controller, 2, case["tokens"], case["prompt"]))
    assert worst <= min(shortest_probes(environment, [0, 1], case["prompt"] + case["tokens"])) + 1e-9


@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=environments)
def test_without_measured_costs_the_first_looks_may_be_mispriced(case: dict) -> None:
    """A guessed cost may be wrong before the first look, and only then: some looks more than the budget allows."""
    costs = {
        0: row(0.04 * case["draft"], case["slope"]),
        1: row(0.04 * case["qualifier"], case["slope"]),
        2: row(0.04, case["slope"]),
    }
    environment = SimulatedEnvironment(costs, [Regime({0: 0.0, 1: 0.0})], seed=case["seed"], noise=0.0)
    controller = make_controller(case["name"], None, default_config(3), Pool.of(3, {0: 10, 1: 30, 2: 100}, None))
    worst = max(overdrafts(environment, controller, 2, case["tokens"], case["prompt"]))
    assert worst <= 1.5 * sum(shortest_probes(environment, [0, 1], case["prompt"] + case["tokens"]))


@pytest.mark.parametrize("prompt", [16, 64, 1000])
def test_useless_drafts_cost_two_per_cent(prompt: int) -> None:
    costs = {0: row(0.004, 0.02), 1: row(0.012, 0.02), 2: row(0.040, 0.02)}
    for tokens in (100, 800):
        environment = SimulatedEnvironment(costs, [Regime({0: 0.0, 1: 0.0})], noise=0.0)
        stats = run(
            environment,
            make_controller("auto", None, default_config(3), Pool(3, (0, 1, 2), CostModel(costs), True)),
            tokens,
            prompt,
        )
        alone = tokens * 0.040 + environment.costs.seconds(2, prompt) - 0.040
        assert alone / stats.seconds >= 0.98
        assert any("target worked alone" in note for note in stats.notes)


@pytest.mark.parametrize("share", [0.005, 0.05])
def test_controls_own_time_is_paid_from_the_budget(share: float) -> None:
    """What is left for looks is 2 % less what control itself takes; a control that takes more looks once and no more."""
    costs = {0: row(0.004, 0.02), 1: row(0.012, 0.02), 2: row(0.040, 0.02)}
    environment = SimulatedEnvironment(costs, [Regime({0: 0.0, 1: 0.0})], noise=0.0)
    controller = make_controller("auto", None, default_config(3), Pool(3, (0, 1, 2), CostModel(costs), True))
    request, blocks = controller.begin(environment.start(16, 400)), []
    while not environment.finished:
        block = replace(environment.step(request.choose().config), control_seconds=0.040 * share)
        request.observe(block)
        blocks.append(block)
    alone = 400 * 0.040 + environment.costs.seconds(2, 16) - 0.040
    looked = sum(block.seconds for block in blocks) - alone
    control = sum(block.control_seconds for block in blocks)
    probe = max(shortest_probes(environment, [0, 1], 16))
    assert 0 < looked <= max(probe, 0.02 * alone - control + probe)
    assert controller.budget.excess == pytest.approx(looked + control)


def test_budget() -> None:
    budget = ExplorationBudget(advance=0.5)
    budget.book(1.0, 1.0)
    assert budget.left(ahead=100.0) == 0.02 + 0.5
    assert budget.left(ahead=10.0) == 0.02 + 0.2  # of the advance what will have been earned by then
    budget.book(1.0, 0.9)
    assert budget.left(ahead=0.0) == pytest.approx(0.04 - 0.1)
    budget.book(1.0, 5.0)  # a gain is credit within the request
    assert budget.left(ahead=0.0) > 3.9
    budget.start()  # of which little is carried over
    assert budget.left(ahead=0.0) == pytest.approx(2 * 0.06)
    other = ExplorationBudget()
    other.load_state_dict(budget.state_dict())
    assert other == budget
