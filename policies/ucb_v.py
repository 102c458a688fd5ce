"""UCB-V: UCB with empirical variances."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number


class UCBV(Policy):
    """Plays the highest ``mean_i + sqrt(2 v_i E / n_i) + 3 * range_weight * E / n_i``, ``E = exploration * ln(n)``.

    v_i is the empirical variance of arm i, n_i its observations (prior included), ``n = sum_i n_i``. A prior mean m
    of weight w counts as w observations of mean m and of variance m (1 - m), the largest that rewards in [0, 1] with
    that mean can have: a prior says what an arm pays, not how reliably.

    Prefer it when rewards vary much less than [0, 1] allows, as speeds of decoding blocks usually do: after a few
    dozen observations its bounds are much tighter than those for the worst case. Before that the last term dominates; it
    covers the case that the variance itself is underestimated. At the paper's weight of 1 it asks for 3 E / gap
    observations of every arm, some 200 at a gap of .15 however little rewards vary; the default is 0.1. At 0 the policy
    can stick to a bad arm for ever, because two equal rewards leave another one no bonus at all.

    Guarantees that do NOT hold here: logarithmic regret is proved for independent rewards of fixed distribution with
    ``exploration > 1`` and ``range_weight = 1``, and not for the default weight. A drifting mean inflates the variance, which only makes it cautious,
    but old rewards are never forgotten.

    Parameters
    ----------
    exploration : float >= 0
        zeta of the paper.
    range_weight : float >= 0
        c of the paper: weight of the term in the rewards' range, which is 1 here; 1 in the paper's proof.

    Source: Audibert, Munos, Szepesvari, "Exploration-exploitation tradeoff using variance estimates in multi-armed
    bandits" (2009), Theoretical Computer Science 410.

    See Also
    --------
    UCB1 : the same without variances.
    ThompsonSampling : learns the variance as well, and can forget.
    """

    name: ClassVar[str] = "ucb_v"
    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "squares")

    def __init__(self, n_arms: int, *, exploration: float = 1.2, range_weight: float = 0.1, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._exploration = number("exploration", exploration, 0.0)
        self._range_weight = number("range_weight", range_weight, 0.0)
        self._squares = np.zeros(self._n_arms)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        width = self._exploration * math.log(max(1.0, weights.sum())) / weights
        second_moments = (self._prior_weights * self._prior_means + self._squares) / weights
        variances = np.maximum(second_moments - means * means, 0.0)
        return means + np.sqrt(2.0 * variances * width) + 3.0 * self._range_weight * width

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        super()._update(arm, reward, features)
        self._squares[arm] += reward * reward
