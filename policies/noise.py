"""How much single rewards vary: what scales the bonus of the UCB policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, positive

# Standard deviation of the noisiest rewards in [0, 1]: 0 or 1 with equal chances.
LARGEST_NOISE = 0.5
# Observations that the arms' common variance is worth in the estimate of one arm's own, and the worst case in the common one.
SHARED_WEIGHT = 4.0
WORST_CASE_WEIGHT = 1.0


def variances(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Estimated variance of a single reward per arm, at most 1/4 (float64, shape [n_arms]).

    An arm's own sum of squared deviations from its mean, with `counts - 1` degrees of freedom, is pooled with the
    variance that all arms share, worth 4 observations; that one starts at 1/4, worth 1 observation::

        shared = (1/4 + sum_i S_i) / (1 + sum_i d_i),   v_i = (4 shared + S_i) / (4 + d_i)
        S_i = sum x^2 - (sum x)^2 / n_i,   d_i = max(n_i - 1, 0)

    Pooling because 32 arms seen three times each say together what the noise is, and none of them does alone. With
    faded observations of weights w, d_i is less than the exact ``sum w - sum w^2 / sum w``: the estimate errs upwards.
    So it does where means have changed lately, which is when more exploration is wanted.

    Args:
        counts, sums, squares: per arm, the (faded) number of observations, their sum and the sum of their squares.
    """
    deviations, degrees = _deviations(counts, sums, squares)
    own = (SHARED_WEIGHT * _shared(deviations, degrees) + deviations) / (SHARED_WEIGHT + degrees)
    return np.minimum(own, LARGEST_NOISE**2)


def shared_variance(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> float:
    """The variance of a single reward that all arms share: `shared` of `variances`."""
    return _shared(*_deviations(counts, sums, squares))


def _deviations(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S_i and d_i."""
    deviations = np.maximum(squares - sums * sums / np.maximum(counts, 1e-12), 0.0)  # max: rounding
    return deviations, np.maximum(counts - 1.0, 0.0)


def _shared(deviations: np.ndarray, degrees: np.ndarray) -> float:
    shared = (WORST_CASE_WEIGHT * LARGEST_NOISE**2 + deviations.sum()) / (WORST_CASE_WEIGHT + degrees.sum())
    return float(min(shared, LARGEST_NOISE**2))


SHORTEST_MEMORY = 200.0
ROUNDS_PER_ARM = 25.0


def memory_for(counts: np.ndarray, rounds: int) -> float:
    """Rounds that a policy that forgets should remember: 25 observations an arm, at least 200 rounds.

    What it forgets it has to find out again, arm by arm, so the memory that leaves most rounds for the best arm grows
    with their number; a longer one follows changes later. Where rewards of arms that were not played are known, too, 25
    observations an arm take fewer rounds.

    Args:
        counts: remembered observations per arm (float64 [n_arms]). rounds: played so far.
    """
    longest = max(SHORTEST_MEMORY, ROUNDS_PER_ARM * len(counts))
    per_round = max(1.0, float(counts.sum()) / max(1.0, min(rounds, longest)))
    return max(SHORTEST_MEMORY, longest / per_round)


class NoiseScaledPolicy(Policy):
    """Base of the UCB policies whose bonus is in units of the rewards' noise: ``sqrt(exploration ln(n) (2 noise_i)^2 / n_i)``.

    At noise 1/2, the most that rewards in [0, 1] allow, these are the papers' formulas, which bound that worst case.
    """

    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "squares")

    def __init__(self, n_arms: int, *, noise: float | None, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._noise = None if noise is None else positive("noise", noise, LARGEST_NOISE)
        self._squares = np.zeros(self._n_arms)

    def _bonus(self, weights: np.ndarray, exploration: float, n: float) -> np.ndarray:
        """Of n observations (or rounds) in all, `weights` of each arm, prior included (shape [n_arms])."""
        noise_squared = variances(self._counts, self._sums, self._squares) if self._noise is None else self._noise**2
        # max: with tiny prior weights the total can be below 1, whose logarithm is no width
        return np.sqrt(4.0 * exploration * noise_squared * math.log(max(1.0, n)) / weights)

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        super()._update(arm, reward, features)
        self._squares[arm] += reward * reward

    def _upgraded(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """States saved before rewards' squares were kept: the largest variance is assumed of what they hold."""
        if "squares" in state or not {"counts", "sums"} <= set(state):
            return state
        squares = [
            total * total / count + LARGEST_NOISE**2 * count if count > 0 else 0.0
            for count, total in zip(state["counts"], state["sums"])
        ]
        return {**state, "squares": squares}
