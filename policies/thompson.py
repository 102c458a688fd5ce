"""Gaussian Thompson sampling with unknown mean and variance, and a memory that fades."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, positive
from policies.noise import LARGEST_NOISE, memory_for, shared_variance


class ThompsonSampling(Policy):
    """Draws each arm's mean from its posterior and plays the highest draw.

    Normal-inverse-gamma posterior of arm i, from n observations (an observation k rounds old counts
    ``discount ** k``) and a prior mean m_0 of weight k_0::

        k = k_0 + n,   m = (k_0 m_0 + sum x) / k,   a = (noise_weight + n) / 2
        b = (noise_weight noise^2 + sum x^2 + k_0 m_0^2 - k m^2) / 2
        mean_i ~ m + sqrt(b / (a k)) * Student-t(2 a)

    The variance is integrated out, hence one Student draw instead of a gamma and a normal draw. By default noise^2 is the
    variance that all arms share so far (`policies.noise.shared_variance`; empirical Bayes): with many arms the heavy
    tails of each one's own few observations would keep all of them in play.

    Prefer it as the default: it explores as much as its own uncertainty asks for, learns how noisy each arm is, and
    forgets. What is forgotten returns to the prior.

    Guarantees that do NOT hold here: optimal regret is proved for Gaussian, independent rewards of fixed
    distribution, and depends on the prior of the variance (arXiv 1311.1894); our rewards are bounded, correlated from
    round to round and react to our choices. Nothing is proved for the discounted posterior; arXiv 1707.09727 shows it
    works for Bernoulli arms. With discount < 1 regret on rewards that never change is linear.

    Parameters
    ----------
    discount : float in (0, 1], optional
        Memory is about 1 / (1 - discount) rounds; 1 never forgets. None: a memory of max(200, 25 K) rounds,
        shorter where more than one reward a round is known (`policies.noise.memory_for`).
    noise : float in (0, 0.5], optional
        Standard deviation of a single reward that is expected of an arm before it was seen; None: that of all arms.
    noise_weight : float > 0
        How many observations that expectation is worth.

    Sources: Murphy, "Conjugate Bayesian analysis of the Gaussian distribution" (2007), section 6 (posterior);
    Raj, Kalyani, "Taming non-stationary bandits: a Bayesian approach" (arXiv 1707.09727) (discounting).

    See Also
    --------
    UCBV : learns variances without randomness, never forgets.
    DiscountedUCB : the optimistic relative.
    """

    name: ClassVar[str] = "thompson"
    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "squares")

    def __init__(
        self,
        n_arms: int,
        *,
        discount: float | None = None,
        noise: float | None = None,
        noise_weight: float = 4.0,
        **common: Any,
    ) -> None:
        super().__init__(n_arms, **common)
        self._discount = None if discount is None else positive("discount", discount, 1.0)
        self._noise_weight = positive("noise_weight", noise_weight)
        self._noise = None if noise is None else positive("noise", noise, LARGEST_NOISE)
        self._squares = np.zeros(self._n_arms)

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        degrees = self._noise_weight + self._counts  # 2 a
        squares = self._squares + self._prior_weights * self._prior_means**2 - weights * means * means
        # max: sums of squares of equal rewards cancel to rounding errors of either sign
        noise_squared = (
            shared_variance(self._counts, self._sums, self._squares) if self._noise is None else self._noise**2
        )
        spread = self._noise_weight * noise_squared + np.maximum(squares, 0.0)  # 2 b
        return means + np.sqrt(spread / (degrees * weights)) * self._rng.standard_t(degrees)

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        super()._update(arm, reward, features)
        self._squares[arm] += reward * reward

    def _begin_round(self) -> None:
        discount = self._discount or 1.0 - 1.0 / memory_for(self._counts, self._rounds)
        self._counts *= discount
        self._sums *= discount
        self._squares *= discount
