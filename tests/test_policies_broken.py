"""The contract can fail: each broken policy below breaks a named promise, and no promise is without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from policies import UCB1, UCBV, DiscountedUCB, EpsilonGreedy, Exp3, LinUCB, Policy, SlidingWindowUCB, ThompsonSampling
from tests.test_policies_contract import ContextualContract, ForgettingContract, PolicyContract


class SameBonusForEveryArm(UCB1):
    """A bug that was published: the bonus divides by all rounds, so that it cancels in the comparison."""

    def _scores(self, weights, means, features):
        return means + np.sqrt(2.0 * np.log(weights.sum()) / weights.sum())


class LearnsNothing(UCB1):
    def _update(self, arm, reward, features):
        pass


class LearnsTheWrongArm(UCB1):
    def _update(self, arm, reward, features):
        super()._update((arm + 1) % self._n_arms, reward, features)


class LearnsInvalidRewards(UCB1):
    def update(self, arm, reward, context=None):
        self._update(arm, reward, None)


class NeverSettles(EpsilonGreedy):
    def __init__(self, n_arms, **options):
        super().__init__(n_arms, epsilon=0.4, **options)


class NeverTriesTheUnknown(UCB1):
    def _select(self, features):
        return int(np.nan_to_num(self.means).argmax())


class NeverForgets(DiscountedUCB):
    def _begin_round(self):
        pass


class AgesWithEveryUpdate(DiscountedUCB):
    def _begin_round(self):
        pass

    def _update(self, arm, reward, features):
        super()._begin_round()
        super()._update(arm, reward, features)


class IgnoresContext(LinUCB):
    def _check_context(self, context):
        return super()._check_context(np.ones(self._context_dim))


class IgnoresPriors(UCB1):
    def __init__(self, n_arms, *, prior_means=None, prior_weights=None, **options):
        super().__init__(n_arms, **options)


class NeverDoubtsPriors(UCB1):
    def _scores(self, weights, means, features):
        return self._prior_means


class PriorOfWeightOne(UCB1):
    @property
    def means(self):
        return (self._prior_means + self._sums) / (1.0 + self._counts)


class NoSeed(ThompsonSampling):
    def __init__(self, n_arms, *, seed=0, **options):
        super().__init__(n_arms, seed=None, **options)


class GlobalGenerator(ThompsonSampling):
    def _scores(self, weights, means, features):
        return means + np.random.standard_normal(self._n_arms) / np.sqrt(weights)


class StateForgetsSquares(UCBV):
    _state = Policy._state


class StateForgetsGenerator(ThompsonSampling):
    def state_dict(self):
        return {**super().state_dict(), "rng": np.random.default_rng(0).bit_generator.state}


class LiveState(SlidingWindowUCB):
    def state_dict(self):
        return {**super().state_dict(), "history": self._history}


class LoadsAnything(UCB1):
    def load_state_dict(self, state):
        self._counts = np.array(state["counts"])
        self._sums = np.array(state["sums"])


class SwallowsKeywords(UCB1):
    def __init__(self, n_arms, *, prior_means=None, prior_weights=None, seed=0, **ignored):
        super().__init__(n_arms, prior_means=prior_means, prior_weights=prior_weights, seed=seed)


class LearnsFromArmsNotPlayed(Exp3):
    def _check_arm(self, arm):
        return Policy._check_arm(self, arm)


class NeedsTwoArms(UCB1):
    def _select(self, features):
        return max(1, super()._select(features))


BROKEN: list[tuple[type[Policy], str, type[PolicyContract], dict[str, Any]]] = [
    (SameBonusForEveryArm, "test_learns_the_best_arm", PolicyContract, {}),
    (LearnsNothing, "test_learns_the_best_arm", PolicyContract, {}),
    (LearnsNothing, "test_plays_every_unknown_arm", PolicyContract, {}),
    (LearnsTheWrongArm, "test_learns_the_best_arm", PolicyContract, {}),
    (LearnsInvalidRewards, "test_refuses_bad_rewards_and_arms", PolicyContract, {}),
    (NeverSettles, "test_regret_is_sublinear", PolicyContract, {}),
    (NeverTriesTheUnknown, "test_plays_every_unknown_arm", PolicyContract, {}),
    (NeverForgets, "test_recovers_after_a_switch", ForgettingContract, {"switching": {"exploration": 0.3}}),
    # not broken, but without `switches` it looks for one fixed best arm
    (Exp3, "test_recovers_after_a_switch", ForgettingContract, {"switching": {}}),
    (AgesWithEveryUpdate, "test_memory_ages_once_per_round", ForgettingContract, {"switching": {}}),
    (IgnoresContext, "test_beats_the_best_fixed_arm", ContextualContract, {"required": {"context_dim": 2}}),
    (IgnoresContext, "test_refuses_a_bad_context", ContextualContract, {"required": {"context_dim": 2}}),
    (IgnoresPriors, "test_respects_priors", PolicyContract, {}),
    (NeverDoubtsPriors, "test_observations_outweigh_a_wrong_prior", PolicyContract, {}),
    (PriorOfWeightOne, "test_prior_and_observations_average_by_weight", PolicyContract, {}),
    (NoSeed, "test_same_seed_same_choices", PolicyContract, {}),
    (GlobalGenerator, "test_leaves_the_global_generator_alone", PolicyContract, {}),
    (StateForgetsSquares, "test_state_round_trip_continues_identically", PolicyContract, {}),
    (StateForgetsGenerator, "test_state_round_trip_continues_identically", PolicyContract, {}),
    (LiveState, "test_saved_state_is_a_snapshot", PolicyContract, {}),
    (LoadsAnything, "test_refuses_a_state_that_does_not_fit", PolicyContract, {}),
    (SwallowsKeywords, "test_refuses_bad_arguments", PolicyContract, {}),
    (LearnsFromArmsNotPlayed, "test_full_information", PolicyContract, {"full_information": False}),
    (NeedsTwoArms, "test_one_arm", PolicyContract, {}),
]


@pytest.mark.parametrize(("policy", "promise", "contract", "settings"), BROKEN)
def test_broken_policy_fails(
    policy: type[Policy], promise: str, contract: type[PolicyContract], settings: dict[str, Any]
) -> None:
    suite = type("Suite", (contract,), {"policy": policy, **settings})()
    method = getattr(suite, promise)
    assert any(fails(method, arguments) for arguments in cases(method)), f"{policy.__name__} passes {promise}"


def test_every_promise_has_a_broken_policy() -> None:
    names = {*dir(ForgettingContract), *dir(ContextualContract)}
    assert {name for name in names if name.startswith("test_")} == {promise for _, promise, _, _ in BROKEN}


def cases(method: Any) -> Iterator[dict[str, Any]]:
    """The arguments that pytest would call the contract's method with."""
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        yield {}
    for mark in marks:
        argument, values = mark.args
        yield from ({argument: value} for value in values)


def fails(method: Any, arguments: dict[str, Any]) -> bool:
    try:
        method(**arguments)
    except AssertionError:
        return True
    return False
