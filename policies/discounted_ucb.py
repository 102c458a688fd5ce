"""Discounted UCB."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from policies.base import number, positive
from policies.noise import NoiseScaledPolicy, memory_for


class DiscountedUCB(NoiseScaledPolicy):
    """UCB on observations that fade: plays the highest ``mean_i + 2 noise_i sqrt(exploration * ln(n) / n_i)``.

    An observation that is k rounds old counts ``discount ** k`` in n_i, in mean_i and in ``n = sum_i n_i``.
    The paper's padding is ``2 B sqrt(xi ln(n) / n_i)`` for rewards in [0, B], and its analysis wants xi > 1/2. Here B = 1
    becomes 2 noise_i, since rewards of standard deviation s vary at most as rewards in [0, 2 s] can, and noise is
    estimated (`policies.noise.variances`); and the leading 2, which its concentration inequality for faded sums costs, is
    dropped: `exploration` = 0.6 is xi alone, the padding that the same paper gives the sliding window. ``exploration=2.4,
    noise=0.5`` is the paper's policy. With a memory of M = 1 / (1 - discount) rounds, K arms keep being played about in
    turn as long as their gaps are below ``2 noise sqrt(exploration K ln(M) / M)``, so the memory has to grow with K.

    Prefer it when rewards drift all the time. What is forgotten returns to the prior, which itself does not fade.

    Guarantees that do NOT hold here: regret of order ``sqrt(switches * T) ln T`` needs the paper's padding, the discount
    tuned to a known number of abrupt switches and horizon, and no prior; for slow drift and for rewards that react to our choices
    nothing is proved. On rewards that never change a fixed discount below 1 has linear regret.

    Parameters
    ----------
    discount : float in (0, 1], optional
        gamma of the paper; memory is about 1 / (1 - discount) rounds. 1 never forgets. None: a memory of
        max(200, 25 K) rounds,
        shorter where more than one reward a round is known (`policies.noise.memory_for`).
    exploration : float >= 0
        Factor of ln(n) / n_i.
    noise : float in (0, 0.5], optional
        Standard deviation of a single reward; None estimates it from the rewards.

    Source: Garivier, Moulines, "On upper-confidence bound policies for non-stationary bandit problems"
    (arXiv 0805.3415), section 2.

    See Also
    --------
    SlidingWindowUCB : forgets all at once, better after abrupt switches.
    ThompsonSampling : fading memory with learned variances, usually less exploration.
    """

    name: ClassVar[str] = "discounted_ucb"

    def __init__(
        self,
        n_arms: int,
        *,
        discount: float | None = None,
        exploration: float = 0.6,
        noise: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(n_arms, noise=noise, **common)
        self._discount = None if discount is None else positive("discount", discount, 1.0)
        self._exploration = number("exploration", exploration, 0.0)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        return means + self._bonus(weights, self._exploration, weights.sum())

    def _begin_round(self) -> None:
        discount = self._discount or 1.0 - 1.0 / memory_for(self._counts, self._rounds)
        self._counts *= discount
        self._sums *= discount
        self._squares *= discount
