"""Which configs become arms."""

from __future__ import annotations

import pytest

from adaptive_pyramid.control.arms import BUDGET_MULTIPLES, FREE_TAUS, LIMIT, candidate_configs, shortened
from adaptive_pyramid.control.factory import Pool, default_config
from adaptive_pyramid.throughput import WIDTHS, CostModel


def pool(n_tiers: int, lookup: bool = False) -> Pool:
    models = range(1 if lookup else 0, n_tiers)
    costs = {tier: {width: 0.004 * 3**tier * (1 + 0.02 * width) for width in WIDTHS} for tier in models}
    return Pool(n_tiers, tuple(models), CostModel(costs), measured=True)


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("n_tiers", [1, 2, 3, 4])
def test_every_route_is_represented_and_nothing_twice(n_tiers: int, lookup: bool) -> None:
    if lookup and n_tiers == 1:
        pytest.skip("a lone lookup is no pyramid")
    tiers = pool(n_tiers, lookup)
    arms = candidate_configs(default_config(n_tiers), tiers)
    assert arms[0].route == (n_tiers - 1,)
    assert {arm.route for arm in arms} == set(tiers.routes())
    assert len(arms) <= LIMIT and len({arm.normalized() for arm in arms}) == len(arms)
    assert {(tier, n_tiers - 1) for tier in range(n_tiers - 1)} <= {arm.route for arm in arms}


def test_the_base_is_an_arm_of_its_own_route() -> None:
    base = default_config(3).with_stage(1, length=3).with_stage(2, length=7)
    assert base in candidate_configs(base, pool(3))


def test_thresholds_vary_only_where_they_cost_no_quality() -> None:
    arms = candidate_configs(default_config(3), pool(3))
    assert all(arm.tau_T == 0 for arm in arms)
    assert {arm.tau_Q for arm in arms if len(arm.route) == 3} == {0.0, *FREE_TAUS}
    assert all(arm.tau_Q == 0 for arm in arms if len(arm.route) < 3)
    drifting = candidate_configs(default_config(3).with_stage(1, tau=0.2), pool(3), free_taus=False)
    assert {arm.tau_Q for arm in drifting if len(arm.route) == 3} == {0.2}


def test_a_budget_is_spent_at_the_target() -> None:
    arms = candidate_configs(default_config(3), pool(3), drift_budget=0.05)
    assert {arm.tau_T for arm in arms if len(arm.route) > 1} == {0.05 * multiple for multiple in BUDGET_MULTIPLES}
    assert len(arms) <= LIMIT


def test_a_pinned_route_keeps_its_thresholds() -> None:
    base = default_config(3).with_stage(1, tau=0.2).with_stage(2, tau=0.3)
    arms = candidate_configs(base, pool(3), route=(0, 1, 2))
    assert {arm.route for arm in arms} == {(0, 1, 2)} and len(arms) > 3
    assert {(arm.tau_Q, arm.tau_T) for arm in arms} == {(0.2, 0.3)}


def test_cheap_drafts_get_longer_lengths_than_dear_ones() -> None:
    arms = candidate_configs(default_config(3), pool(3))
    longest = {route: max(arm.stages[-1].length for arm in arms if arm.route == route) for route in ((0, 2), (1, 2))}
    assert longest[0, 2] >= longest[1, 2]


def test_shortened() -> None:
    config = default_config(3)
    assert shortened(config, 2).label == "0>1>2 l=2,2"
    assert shortened(config, 5).label == "0>1>2 l=4,5"
    assert shortened(config.with_route((2,)), 1) == config.with_route((2,))
