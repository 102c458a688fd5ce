"""Controllers on simulated environments: any policy under one exploration budget. Nothing here looks at a clock."""

from __future__ import annotations

import json

import pytest

from adaptive_pyramid.config import PyramidConfig, StageConfig
from adaptive_pyramid.control.bandit import BanditController
from adaptive_pyramid.control.controller import FixedController
from adaptive_pyramid.control.factory import Pool, default_config, make_controller
from adaptive_pyramid.control.reward import SpeedReward
from adaptive_pyramid.stats import BlockStats
from adaptive_pyramid.throughput import CostModel
from policies import POLICIES, make_policy
from tests.simulated import Regime, SimulatedEnvironment, run

WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def row(first: float, slope: float = 0.02) -> dict[int, float]:
    return {width: first * (1 + slope * (width - 1)) for width in WIDTHS}


COSTS = {0: row(0.004), 1: row(0.012), 2: row(0.040)}
BYTES = {0: 160_000_000, 1: 480_000_000, 2: 1_600_000_000}


def pool(measured: bool = True) -> Pool:
    return Pool.of(3, BYTES, CostModel(COSTS) if measured else None)


def controller(name: str, measured: bool = True, route=None):
    return make_controller(name, route, default_config(3), pool(measured))


@pytest.mark.parametrize("name", ["auto", "bandit", *POLICIES])
def test_every_policy_beats_target_only_where_drafts_are_good(name: str) -> None:
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.75, 1: 0.9})], seed=1)
    stats = run(environment, controller(name), 400)
    alone = run(
        SimulatedEnvironment(COSTS, [Regime({0: 0.75, 1: 0.9})], seed=1),
        FixedController(default_config(3).with_route((2,))),
        400,
    )
    assert stats.tokens == alone.tokens == 400
    assert stats.tokens_per_second > 1.5 * alone.tokens_per_second


def test_state_goes_on_where_it_was_saved() -> None:
    first = controller("thompson")
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.75, 1: 0.9})], seed=1)
    run(environment, first, 200)
    second = controller("thompson")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.policy.means.tolist() == first.policy.means.tolist()
    assert second.budget == first.budget
    with pytest.raises(ValueError, match="belongs to controller 'bandit:thompson'"):
        controller("ucb1").load_state_dict(first.state_dict())
    other = make_controller("thompson", None, default_config(3).with_stage(2, length=3), pool())
    with pytest.raises(ValueError, match="other arms"):
        other.load_state_dict(first.state_dict())


def test_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'thompson'"):
        controller("tompson")
    assert controller("fixed").begin is not None and controller("fixed").name == "fixed"
    assert controller("bandit").name == "bandit:discounted_ucb"


def test_a_pinned_route_stays() -> None:
    pinned = controller("thompson", route=(0, 2))
    stats = run(SimulatedEnvironment(COSTS, [Regime({0: 0.1, 1: 0.1})], seed=1), pinned, 60)
    assert {block.config.route for block in stats.blocks} == {(0, 2)}


def test_a_tier_that_left_the_route_is_not_chosen_again() -> None:
    class Lossy(SimulatedEnvironment):
        def step(self, config: PyramidConfig) -> BlockStats:
            return super().step(config.with_route((1, 2)) if 0 in config.tiers else config)

    environment = Lossy(COSTS, [Regime({0: 0.75, 1: 0.9})], seed=1)
    auto = controller("auto")
    asked = []
    original = environment.step
    environment.step = lambda config: asked.append(config) or original(config)
    run(environment, auto, 300)
    with_draft = [i for i, config in enumerate(asked) if 0 in config.tiers]
    assert len(with_draft) == 1


def test_a_draft_that_is_always_refused_stays_on_the_first_rung() -> None:
    free = {0: row(1e-6, 0.0), 1: row(1e-6, 0.0), 2: row(0.040, 0.0)}  # the exploration budget can pay for any length
    curious = make_controller("epsilon_greedy", None, default_config(3), Pool(3, (0, 1, 2), CostModel(free), True))
    stats = run(SimulatedEnvironment(free, [Regime({0: 0.0, 1: 0.0})], seed=1), curious, 200)
    drafting = [block.config for block in stats.blocks if len(block.config.route) > 1]
    assert len(drafting) > 10
    assert max(stage.length for config in drafting for stage in config.normalized().stages) == 1


def test_a_policy_of_the_wrong_size_is_refused() -> None:
    arms = [PyramidConfig((StageConfig(4),), (1,)), PyramidConfig((StageConfig(4),), (0, 1))]
    with pytest.raises(ValueError, match="3 arms, expected 2"):
        BanditController(arms, make_policy("ucb1", 3), SpeedReward(10.0), Pool.of(2, {0: 1, 1: 4}, None))


def test_reward() -> None:
    config = PyramidConfig((StageConfig(4),), (0, 1))
    reward = SpeedReward(100.0)
    block = BlockStats(config, 0, 10, tokens=4, seconds=0.1)
    assert reward(block, 0.1) == pytest.approx(40 / 99.5)
    assert reward(block, 0.01) == 1.0  # the reference follows upwards at once
    assert reward.reference == pytest.approx(400)
    priced = SpeedReward(100.0, drift_budget=0.1, drift_price=0.2)
    drifting = BlockStats(config, 0, 10, tokens=4, seconds=0.1, drift=(0.2, 0.0, 0.0, 0.0))
    assert priced(drifting, 0.1) == pytest.approx(40 / 99.5 - 0.2 * 0.5)
