"""Epsilon-greedy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number


class EpsilonGreedy(Policy):
    """Plays the best mean, and with probability epsilon_t a uniformly random arm.

    ``epsilon_t = epsilon / (1 + decay * t)``, t = rounds so far. With `decay` > 0 this is the 1/t schedule of
    epsilon_n-greedy (``c K / (d^2 t)``, with ``epsilon / decay`` in place of ``c K / d^2``: the gap d is unknown here).

    Prefer it as a baseline, or when the priors are so good that all one wants is an occasional check on the others.

    Guarantees that do NOT hold here: logarithmic regret needs ``decay > 0``, ``epsilon / decay`` above a constant that
    depends on the unknown gap, and rewards that do not change. With constant epsilon regret is linear,
    ``epsilon * mean gap`` per round. The means weigh old and new rewards alike, so a switch is noticed late.

    Parameters
    ----------
    epsilon : float in [0, 1]
        Probability of a random arm in the first round.
    decay : float >= 0
        How fast that probability falls; 0 keeps it.

    Source: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), figure 3.

    See Also
    --------
    UCB1 : explores the arms it is unsure of instead of any arm.
    ThompsonSampling : randomised too, but in proportion to what is still uncertain.
    """

    name: ClassVar[str] = "epsilon_greedy"

    def __init__(self, n_arms: int, *, epsilon: float = 0.1, decay: float = 0.0, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._epsilon = number("epsilon", epsilon, 0.0, 1.0)
        self._decay = number("decay", decay, 0.0)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        if self._rng.random() < self._epsilon / (1.0 + self._decay * self._rounds):
            return self._rng.random(self._n_arms)  # the highest of independent uniforms is a uniformly random arm
        return means
