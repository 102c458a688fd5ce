"""Sliding-window UCB."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number, whole


class SlidingWindowUCB(Policy):
    """UCB on the last `window` rounds: ``mean_i + sqrt(exploration * ln(min(t, window)) / n_i)``.

    n_i and mean_i are over observations of the last `window` rounds (prior included), t counts rounds. An arm that
    left the window altogether is played again, unless it has a prior: then it is back at its prior. `exploration`
    is the paper's B^2 xi with B = 1; its analysis wants xi > 1/2.

    Prefer it when rewards change abruptly (another prompt, another text genre): after `window` rounds nothing of the
    old regime is left. Keep `window` at several times the number of arms.

    Guarantees that do NOT hold here: regret of order ``sqrt(switches * T ln T)`` needs the window tuned to a known
    number of switches and horizon, and no prior; nothing is proved for rewards that react to our choices. On rewards
    that never change a fixed window has linear regret.

    Parameters
    ----------
    window : int
        tau of the paper: rounds that are remembered, at least 1.
    exploration : float >= 0
        Factor of the logarithm.

    Source: Garivier, Moulines, "On upper-confidence bound policies for non-stationary bandit problems"
    (arXiv 0805.3415), section 2.

    See Also
    --------
    DiscountedUCB : fades smoothly, needs no history.
    Exp3 : with `switches`, the randomised answer to the same problem.
    """

    name: ClassVar[str] = "sliding_window_ucb"
    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "history")

    def __init__(self, n_arms: int, *, window: int = 200, exploration: float = 0.6, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._window = whole("window", window, minimum=1)
        self._exploration = number("exploration", exploration, 0.0)
        self._history: list[tuple[int, int, float]] = []  # (round, arm, reward), oldest first

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: None) -> np.ndarray:
        # + the prior's weight: pseudo-observations are rounds, too, that took place before the first
        rounds = min(self._rounds, self._window) + self._prior_weights.sum()
        return means + np.sqrt(self._exploration * math.log(max(1.0, rounds)) / weights)

    def _update(self, arm: int, reward: float, features: None) -> None:
        super()._update(arm, reward, features)
        self._history.append((self._rounds, arm, reward))

    def _begin_round(self) -> None:
        expired = 0
        for when, arm, reward in self._history:
            if when > self._rounds - self._window:
                break
            self._counts[arm] -= 1.0
            self._sums[arm] -= reward
            expired += 1
        del self._history[:expired]
