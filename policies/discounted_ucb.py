"""Discounted UCB."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number, positive


class DiscountedUCB(Policy):
    """UCB on observations that fade: plays the highest ``mean_i + sqrt(exploration * ln(n) / n_i)``.

    An observation that is k rounds old counts ``discount ** k`` in n_i, in mean_i and in ``n = sum_i n_i``.
    The paper's padding is ``2 B sqrt(xi ln(n) / n_i)`` and its analysis wants xi > 1/2: B = 1 and xi = 0.6 give the
    default `exploration` = 4 * 0.6. It is wide: with a memory of M = 1 / (1 - discount) rounds, K arms keep being
    played about in turn as long as their gaps are below ``sqrt(2.4 K ln(M) / M)``; lower it when arms are many.

    Prefer it when rewards drift all the time. What is forgotten returns to the prior, which itself does not fade.

    Guarantees that do NOT hold here: regret of order ``sqrt(switches * T) ln T`` needs the discount tuned to a known
    number of abrupt switches and horizon, and no prior; for slow drift and for rewards that react to our choices
    nothing is proved. On rewards that never change a fixed discount below 1 has linear regret.

    Parameters
    ----------
    discount : float in (0, 1]
        gamma of the paper; memory is about 1 / (1 - discount) rounds. 1 never forgets.
    exploration : float >= 0
        Factor of ln(n) / n_i.

    Source: Garivier, Moulines, "On upper-confidence bound policies for non-stationary bandit problems"
    (arXiv 0805.3415), section 2.

    See Also
    --------
    SlidingWindowUCB : forgets all at once, better after abrupt switches.
    ThompsonSampling : fading memory with learned variances, usually less exploration.
    """

    name: ClassVar[str] = "discounted_ucb"

    def __init__(self, n_arms: int, *, discount: float = 0.995, exploration: float = 2.4, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._discount = positive("discount", discount, 1.0)
        self._exploration = number("exploration", exploration, 0.0)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: None) -> np.ndarray:
        log_n = math.log(max(1.0, weights.sum()))
        return means + np.sqrt(self._exploration * log_n / weights)

    def _begin_round(self) -> None:
        self._counts *= self._discount
        self._sums *= self._discount
