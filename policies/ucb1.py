"""UCB1."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number


class UCB1(Policy):
    """Plays the highest upper confidence bound: ``mean_i + sqrt(exploration * ln(n) / n_i)``, ``n = sum_i n_i``.

    n_i counts observations of arm i, pseudo-observations of the prior included. `exploration` = 2 is the paper's.

    Prefer it when rewards do not change and runs are long; it has no randomness, so its choices are easy to explain.

    Guarantees that do NOT hold here: regret of order ``sum_i ln(T) / gap_i`` is proved for independent rewards of
    fixed means. With rewards that drift or react to our choices it can lock on a stale arm for very long (its
    certainty only grows), and a confident wrong prior delays it by about exp(prior weight * gap^2 / exploration)
    rounds. With full-information feedback n counts every observation, not every round.

    Parameters
    ----------
    exploration : float >= 0
        Factor of ln(n) / n_i; smaller explores less.

    Source: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), figure 1.

    See Also
    --------
    UCBV : far less exploration when rewards vary little.
    DiscountedUCB, SlidingWindowUCB : the same index on a memory that fades.
    """

    name: ClassVar[str] = "ucb1"

    def __init__(self, n_arms: int, *, exploration: float = 2.0, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._exploration = number("exploration", exploration, 0.0)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: None) -> np.ndarray:
        # max: with tiny prior weights the total can be below 1, whose logarithm is no width
        log_n = math.log(max(1.0, weights.sum()))
        return means + np.sqrt(self._exploration * log_n / weights)
