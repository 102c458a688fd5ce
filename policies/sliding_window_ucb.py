"""Sliding-window UCB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from policies.base import number, whole
from policies.noise import NoiseScaledPolicy, memory_for


class SlidingWindowUCB(NoiseScaledPolicy):
    """UCB on the last `window` rounds: ``mean_i + 2 noise_i sqrt(exploration * ln(min(t, window)) / n_i)``.

    n_i and mean_i are over observations of the last `window` rounds (prior included), t counts rounds. An arm that
    left the window altogether is played again, unless it has a prior: then it is back at its prior. `exploration`
    is the paper's xi, of which its analysis wants more than 1/2. Its B, the range of rewards, is replaced by 2 noise_i,
    estimated (`policies.noise.variances`); ``noise=0.5`` is the paper's policy for rewards in [0, 1].

    Prefer it when rewards change abruptly (another prompt, another text genre): after `window` rounds nothing of the
    old regime is left. With K arms the window has to grow with K: each needs its share of observations in it.

    Guarantees that do NOT hold here: regret of order ``sqrt(switches * T ln T)`` needs the window tuned to a known
    number of switches and horizon, ``noise=0.5``, and no prior; nothing is proved for rewards that react to our choices. On rewards
    that never change a fixed window has linear regret.

    Parameters
    ----------
    window : int, optional
        tau of the paper: rounds that are remembered, at least 1. None: max(200, 25 K), less where
        more than one reward a round is known (`policies.noise.memory_for`).
    exploration : float >= 0
        Factor of the logarithm.
    noise : float in (0, 0.5], optional
        Standard deviation of a single reward; None estimates it from the rewards.

    Source: Garivier, Moulines, "On upper-confidence bound policies for non-stationary bandit problems"
    (arXiv 0805.3415), section 2.

    See Also
    --------
    DiscountedUCB : fades smoothly, needs no history.
    Exp3 : with `switches`, the randomised answer to the same problem.
    """

    name: ClassVar[str] = "sliding_window_ucb"
    _state: ClassVar[tuple[str, ...]] = (*NoiseScaledPolicy._state, "history")

    def __init__(
        self,
        n_arms: int,
        *,
        window: int | None = None,
        exploration: float = 0.6,
        noise: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(n_arms, noise=noise, **common)
        self._window = None if window is None else whole("window", window, minimum=1)
        self._exploration = number("exploration", exploration, 0.0)
        self._history: list[tuple[int, int, float]] = []  # (round, arm, reward), oldest first

    @property
    def _memory(self) -> int:
        return self._window or round(memory_for(self._counts, self._rounds))

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        # + the prior's weight: pseudo-observations are rounds, too, that took place before the first
        rounds = min(self._rounds, self._memory) + self._prior_weights.sum()
        return means + self._bonus(weights, self._exploration, rounds)

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        super()._update(arm, reward, features)
        self._history.append((self._rounds, arm, reward))

    def _begin_round(self) -> None:
        expired, oldest = 0, self._rounds - self._memory
        for when, arm, reward in self._history:
            if when > oldest:
                break
            self._counts[arm] -= 1.0
            self._sums[arm] -= reward
            self._squares[arm] -= reward * reward
            expired += 1
        del self._history[:expired]

    def _upgraded(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        if "squares" in state or not isinstance(state.get("history"), list):
            return state
        squares = [0.0] * self._n_arms
        for _, arm, reward in state["history"]:
            squares[arm] += reward * reward
        return {**state, "squares": squares}
