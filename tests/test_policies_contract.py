"""The contract that every bandit policy keeps, and every policy inheriting it.

`PolicyContract` is also run against deliberately broken policies (test_policies_broken.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from policies import UCB1, UCBV, DiscountedUCB, EpsilonGreedy, Exp3, LinUCB, Policy, SlidingWindowUCB, ThompsonSampling

MEANS = (0.3, 0.45, 0.75, 0.2)
BEST = 2
SEEDS = range(6)
CONTEXT_DIM = 2


def bernoulli(mean: float, rng: np.random.Generator) -> float:
    return float(rng.random() < mean)


def gaussian(mean: float, rng: np.random.Generator) -> float:
    return float(np.clip(rng.normal(mean, 0.1), 0.0, 1.0))


def play(
    policy: Policy,
    mean: Callable[[int, int, np.ndarray], float],
    horizon: int,
    seed: int,
    noise: Callable[[float, np.random.Generator], float] = gaussian,
) -> np.ndarray:
    """The arms played in `horizon` rounds; `mean(t, arm, context)` is what an arm pays on average."""
    rng = np.random.default_rng(10_000 + seed)
    arms = np.empty(horizon, dtype=int)
    for t in range(horizon):
        context = rng.uniform(-1.0, 1.0, CONTEXT_DIM)
        arms[t] = policy.select(context)
        assert 0 <= arms[t] < policy.n_arms
        policy.update(int(arms[t]), noise(mean(t, arms[t], context), rng), context)
    return arms


def stationary(t: int, arm: int, context: np.ndarray) -> float:
    return MEANS[arm]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


def through_yaml(state: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(yaml.safe_dump(state))


class PolicyContract:
    """Inherit, name the policy, and the options under which each promise is made."""

    policy: type[Policy]
    required: dict[str, Any] = {}  # options without which the policy cannot be built
    stationary: dict[str, Any] = {}  # options for rewards that never change
    full_information = True  # update() may name an arm that was not played
    share = 0.7  # of the last quarter of 1500 rounds, for the best arm

    def make(self, n_arms: int = len(MEANS), **options: Any) -> Policy:
        return self.policy(n_arms, **{**self.required, **options})

    # ---------------------------------------------------------------- learning

    @pytest.mark.parametrize("noise", [bernoulli, gaussian])
    def test_learns_the_best_arm(self, noise: Callable[[float, np.random.Generator], float]) -> None:
        for seed in SEEDS:
            arms = play(self.make(seed=seed, **self.stationary), stationary, 1500, seed, noise)
            share = (arms[-375:] == BEST).mean()
            assert share >= self.share, f"seed {seed}: best arm played in {share:.0%} of the last quarter"

    def test_regret_is_sublinear(self) -> None:
        halves = np.zeros(2)
        for seed in SEEDS:
            arms = play(self.make(seed=seed, **self.stationary), stationary, 3000, seed, bernoulli)
            halves += (MEANS[BEST] - np.take(MEANS, arms)).reshape(2, -1).sum(axis=1)
        assert halves[1] < 0.7 * halves[0], f"regret of the two halves: {halves}"
        assert halves.sum() < 0.5 * len(SEEDS) * 3000 * (MEANS[BEST] - np.mean(MEANS)), "no better than half of chance"

    def test_plays_every_unknown_arm(self) -> None:
        assert set(play(self.make(), stationary, 60, seed=0)) == set(range(len(MEANS)))

    # ---------------------------------------------------------------- priors

    def test_respects_priors(self) -> None:
        prior = {"prior_means": [0.1, 0.1, 0.1, 0.9], "prior_weights": 60.0}
        first = []
        for seed in range(30):
            policy = self.make(seed=seed, **prior)
            np.testing.assert_allclose(policy.means, prior["prior_means"])
            assert not policy.counts.any(), "pseudo-observations are not observations"
            first.append(policy.select(np.zeros(CONTEXT_DIM)))
        assert np.mean(np.equal(first, 3)) >= 0.8, f"first choices: {first}"

    def test_observations_outweigh_a_wrong_prior(self) -> None:
        prior = {"prior_means": [0.5, 0.9, 0.5, 0.5], "prior_weights": 3.0}
        for seed in SEEDS:
            arms = play(self.make(seed=seed, **prior, **self.stationary), stationary, 1500, seed)
            assert (arms[-375:] == BEST).mean() >= self.share

    def test_prior_and_observations_average_by_weight(self) -> None:
        policy = self.make(prior_means=0.2, prior_weights=3.0)
        arm = policy.select(np.zeros(CONTEXT_DIM))
        policy.update(arm, 1.0, np.zeros(CONTEXT_DIM))
        assert policy.means[arm] == pytest.approx((3 * 0.2 + 1.0) / 4)
        assert policy.counts[arm] == 1.0

    # ---------------------------------------------------------------- determinism and state

    def test_same_seed_same_choices(self) -> None:
        runs = [play(self.make(seed=5), stationary, 300, seed=1) for _ in range(2)]
        assert (runs[0] == runs[1]).all()

    def test_leaves_the_global_generator_alone(self) -> None:
        np.random.seed(3)
        before = np.random.get_state()[1:]
        runs = [play(self.make(seed=5), stationary, 50, seed=1)]
        after = np.random.get_state()[1:]
        assert (before[0] == after[0]).all() and before[1:] == after[1:]
        np.random.seed(4)
        runs.append(play(self.make(seed=5), stationary, 50, seed=1))
        assert (runs[0] == runs[1]).all(), "choices depend on the global generator"

    @pytest.mark.parametrize("plain", [through_json, through_yaml])
    def test_state_round_trip_continues_identically(self, plain: Callable[[Any], Any]) -> None:
        first = self.make(seed=7, prior_means=0.4, prior_weights=2.0)
        play(first, stationary, 250, seed=0)
        first.select(np.zeros(CONTEXT_DIM))  # also between a select and its update
        second = self.make(seed=8)
        second.load_state_dict(plain(first.state_dict()))
        assert second.state_dict() == first.state_dict()
        arm = first.select(np.zeros(CONTEXT_DIM))
        assert second.select(np.zeros(CONTEXT_DIM)) == arm
        for policy in (first, second):
            policy.update(arm, 0.5, np.zeros(CONTEXT_DIM))
        assert (play(first, stationary, 300, seed=1) == play(second, stationary, 300, seed=1)).all()
        np.testing.assert_array_equal(first.means, second.means)

    def test_saved_state_is_a_snapshot(self) -> None:
        policy = self.make()
        play(policy, stationary, 30, seed=0)
        saved = policy.state_dict()
        frozen = json.dumps(saved)
        play(policy, stationary, 30, seed=1)
        assert json.dumps(saved) == frozen

    def test_refuses_a_state_that_does_not_fit(self) -> None:
        policy = self.make()
        play(policy, stationary, 20, seed=0)
        good = policy.state_dict()
        bad = {
            "policy='other'": {**good, "policy": "other"},
            "n_arms=9": {**good, "n_arms": 9},
            "'sums'": {key: value for key, value in good.items() if key != "sums"},
            "'surplus'": {**good, "surplus": 1},
            "'counts'": {**good, "counts": [1.0]},
            "'rounds'": {**good, "rounds": "many"},
            "'rng'": {**good, "rng": {"bit_generator": "PCG64"}},
        }
        for word, state in bad.items():
            refused(ValueError, word, policy.load_state_dict, state)
            assert policy.state_dict() == good, "a refused state changed the policy"
        refused(TypeError, "mapping", policy.load_state_dict, [1])

    # ---------------------------------------------------------------- mistakes

    def test_refuses_bad_rewards_and_arms(self) -> None:
        policy, context = self.make(), np.zeros(CONTEXT_DIM)
        arm = policy.select(context)
        before = policy.state_dict()
        for reward in (-0.01, 1.01, float("nan"), float("inf")):
            refused(ValueError, "reward", policy.update, arm, reward, context)
        for reward in ("0.5", None, [0.5]):
            refused(TypeError, "reward", policy.update, arm, reward, context)
        for wrong in (-1, len(MEANS)):
            refused(ValueError, "arm", policy.update, wrong, 0.5, context)
        for wrong in (1.0, "1", True, None):
            refused(TypeError, "arm", policy.update, wrong, 0.5, context)
        assert policy.state_dict() == before, "a refused update was learned"
        policy.update(np.int64(arm), np.float32(0.5), context)
        assert policy.counts[arm] == 1.0

    def test_refuses_bad_arguments(self) -> None:
        refused(ValueError, "n_arms", self.make, 0)
        refused(TypeError, "n_arms", self.make, 2.0)
        refused(ValueError, "prior_means", self.make, prior_means=[0.5])
        refused(ValueError, r"prior_means[1]", self.make, prior_means=[0.5, 1.5, 0.5, 0.5])
        refused(ValueError, r"prior_weights[0]", self.make, prior_means=0.5, prior_weights=-1.0)
        refused(ValueError, r"prior_weights[3]", self.make, prior_means=0.5, prior_weights=[1, 1, 1, float("inf")])
        refused(ValueError, "prior_means", self.make, prior_weights=1.0)
        refused(TypeError, "prior_means", self.make, prior_means="high")
        refused(TypeError, "unexpected", self.make, surplus=1)

    def test_full_information(self) -> None:
        """Rewards of arms that were not played are learned, or refused with a reason."""
        policy, rng, context = self.make(**self.stationary), np.random.default_rng(0), np.zeros(CONTEXT_DIM)
        played = policy.select(context)
        if not self.full_information:
            refused(ValueError, "selected last", policy.update, (played + 1) % len(MEANS), 0.5, context)
            policy.update(played, 0.5, context)
            refused(ValueError, "selected last", policy.update, played, 0.5, context)
            return
        for _ in range(50):
            policy.select(context)
            for arm, mean in enumerate(MEANS):
                policy.update(arm, gaussian(mean, rng), context)
        assert policy.counts == pytest.approx(50.0)
        np.testing.assert_allclose(policy.means, MEANS, atol=0.05)
        assert policy.select(context) == BEST

    def test_one_arm(self) -> None:
        assert set(play(self.make(1), lambda t, arm, context: 0.5, 20, seed=0)) == {0}


class ForgettingContract(PolicyContract):
    """For policies that follow rewards that change."""

    switching: dict[str, Any]  # options for rewards that change after 2000 rounds

    def test_recovers_after_a_switch(self) -> None:
        # the leader stays as good as it was and another arm overtakes it: nothing hints at it but trying that arm again
        before, after = (0.1, 0.3, 0.6, 0.2), (0.9, 0.3, 0.6, 0.2)

        def switch(t: int, arm: int, context: np.ndarray) -> float:
            return before[arm] if t < 2000 else after[arm]

        arms = [play(self.make(seed=seed, **self.switching), switch, 2800, seed)[-300:] for seed in SEEDS]
        share = np.equal(arms, 0).mean()
        assert share >= 0.6, f"from 500 rounds after the switch on, the new best arm was played in {share:.0%}"

    def test_memory_ages_once_per_round(self) -> None:
        """However many arms report in a round, and whatever their order."""
        if not self.full_information:
            return
        policy, context = self.make(**self.switching), np.zeros(CONTEXT_DIM)
        for _ in range(500):
            policy.select(context)
            for arm, mean in enumerate(MEANS):
                policy.update(arm, mean, context)
        assert policy.counts[0] < 500.0 and policy.counts == pytest.approx(policy.counts[0]), policy.counts


class ContextualContract(PolicyContract):
    """For policies whose choice depends on the context."""

    def test_beats_the_best_fixed_arm(self) -> None:
        def mean(t: int, arm: int, context: np.ndarray) -> float:
            return 0.5 + 0.4 * (context[0] if arm == 0 else -context[0] if arm == 1 else 0.0)

        for seed in SEEDS:
            policy, rng, earned = self.make(3, seed=seed), np.random.default_rng(seed), 0.0
            for _ in range(1000):
                context = rng.uniform(-1.0, 1.0, CONTEXT_DIM)
                arm = policy.select(context)
                earned += mean(0, arm, context)
                policy.update(arm, gaussian(mean(0, arm, context), rng), context)
            # any fixed arm earns 0.5 a round on average; knowing everything earns 0.5 + 0.4 / 2
            assert earned / 1000 > 0.65, f"seed {seed}: {earned / 1000:.3f} per round"

    def test_refuses_a_bad_context(self) -> None:
        policy = self.make()
        before = policy.state_dict()
        for context in (None, np.zeros(CONTEXT_DIM + 1), np.full(CONTEXT_DIM, np.nan), "text"):
            refused(ValueError, "context", policy.select, context)
            refused(ValueError, "context", policy.update, 0, 0.5, context)
        assert policy.state_dict() == before


def refused(kind: type[Exception], word: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Assert that the call raises `kind` with `word` in the message (AssertionError otherwise, whatever it does)."""
    try:
        call(*args, **options)
    except kind as error:
        assert word in str(error), f"{word!r} is not in the message: {error}"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    else:
        raise AssertionError(f"accepted: {args} {options}")


class TestEpsilonGreedy(PolicyContract):
    policy = EpsilonGreedy
    stationary = {"epsilon": 1.0, "decay": 0.1}


class TestUCB1(PolicyContract):
    policy = UCB1


class TestUCBV(PolicyContract):
    policy = UCBV


class TestDiscountedUCB(ForgettingContract):
    policy = DiscountedUCB
    stationary = {"discount": 1.0}
    switching = {"discount": 0.99, "exploration": 0.3}


class TestSlidingWindowUCB(ForgettingContract):
    policy = SlidingWindowUCB
    stationary = {"window": 10_000}
    switching = {"window": 150, "exploration": 0.3}


class TestThompsonSampling(ForgettingContract):
    policy = ThompsonSampling
    stationary = {"discount": 1.0}
    switching = {"discount": 0.99}


class TestExp3(ForgettingContract):
    policy = Exp3
    switching = {"horizon": 2800, "switches": 1}
    full_information = False
    share = 0.5


class TestLinUCB(ContextualContract):
    policy = LinUCB
    required = {"context_dim": CONTEXT_DIM}
