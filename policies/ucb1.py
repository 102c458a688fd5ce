"""UCB1."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from policies.base import number
from policies.noise import NoiseScaledPolicy


class UCB1(NoiseScaledPolicy):
    """Plays the highest upper confidence bound: ``mean_i + 2 noise_i sqrt(exploration * ln(n) / n_i)``, ``n = sum_i n_i``.

    n_i counts observations of arm i, pseudo-observations of the prior included. `exploration` = 2 is the paper's, and at
    noise 1/2, the largest standard deviation of rewards in [0, 1], so is the whole formula: by Hoeffding's lemma it
    covers any reward in [0, 1]. Rewards of standard deviation s need a bonus 2 s times as wide (the same bound for
    s-sub-Gaussian rewards); by default s is estimated (`policies.noise.variances`).

    Prefer it when rewards do not change and runs are long; it has no randomness, so its choices are easy to explain.

    Guarantees that do NOT hold here: regret of order ``sum_i ln(T) / gap_i`` is proved for independent rewards of
    fixed means at ``noise=0.5``, or any true sub-Gaussian noise; not for an estimated one, which can be too small at
    first (UCB-V pays for that with a term of its own). With rewards that drift or react to our choices it can lock on a stale arm for very long (its
    certainty only grows), and a confident wrong prior delays it by about exp(prior weight * gap^2 / exploration)
    rounds. With full-information feedback n counts every observation, not every round.

    Parameters
    ----------
    exploration : float >= 0
        Factor of ln(n) / n_i; smaller explores less.
    noise : float in (0, 0.5], optional
        Standard deviation of a single reward; None estimates it from the rewards.

    Sources: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), figure 1, and
    section 4 for the same idea (UCB1-tuned: the empirical variance in place of 1/4); Lattimore, Szepesvari, "Bandit
    algorithms" (2020), chapter 7, for sub-Gaussian noise.

    See Also
    --------
    UCBV : a bonus from variances with a proof.
    DiscountedUCB, SlidingWindowUCB : the same index on a memory that fades.
    """

    name: ClassVar[str] = "ucb1"

    def __init__(self, n_arms: int, *, exploration: float = 2.0, noise: float | None = None, **common: Any) -> None:
        super().__init__(n_arms, noise=noise, **common)
        self._exploration = number("exploration", exploration, 0.0)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        return means + self._bonus(weights, self._exploration, weights.sum())
