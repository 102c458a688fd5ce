"""EXP3 and EXP3.S."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, whole


class Exp3(Policy):
    """Exponential weights on importance-weighted rewards, for rewards that an adversary may choose.

    ::

        p_i = (1 - g) w_i / sum(w) + g / K,      w_i = exp(g / K * gain_i)
        gain_played += reward / p_played
        g = min(1, sqrt(K ln(K) / ((e - 1) t)))                                         switches = 0: EXP3
        g = min(1, sqrt(K (S ln(K t) + e) / ((e - 1) t))),   S = switches + 1           switches > 0: EXP3.S
        and each round adds e / t * sum(w) / K, w before the round, to every w_i        switches > 0: EXP3.S

    with t = `horizon` if given: the paper's step size. Otherwise t = rounds so far plus the prior's weight (anytime:
    the same formula with the time that has passed for the time there will be; weights are recomputed from the gains
    with the current g, which is the form of Bubeck & Cesa-Bianchi's anytime proof, and not a product of old factors).
    Without `horizon`, g is 1 (uniform play) for the first K ln(K) / (e - 1) rounds.

    A prior mean m_i of weight w_i enters as w_i plays of arm i that paid m_i at probability 1 / K, relative to the
    priors' average: ``gain_i = K w_i (m_i - average)``.

    Prefer it when rewards may react to our choices in ways no model covers; it pays for that with more exploration
    than any other policy here, growing with sqrt(K). `update` accepts only the arm that was selected last, once:
    the probability of any other arm is unknown, so full-information feedback is refused.

    Guarantees that do NOT hold here: regret of order sqrt(T K ln K) is against the best *fixed* arm (with `switches`:
    against the best sequence with that many switches), for an adversary that does not look at our random draws. If
    rewards depend on earlier choices, this is not the regret one cares about (policy regret). Priors are outside the
    proof, and so is replacing the horizon by the time passed in EXP3.S.

    Parameters
    ----------
    horizon : int, optional
        Rounds that will be played, if known.
    switches : int
        How often the best arm is expected to change within the horizon; 0 is plain EXP3, which does not forget.

    Sources: Auer, Cesa-Bianchi, Freund, Schapire, "The nonstochastic multiarmed bandit problem" (2002), sections 3
    and 8; anytime steps: Bubeck, Cesa-Bianchi, "Regret analysis of stochastic and nonstochastic multi-armed bandit
    problems" (arXiv 1204.5721), theorem 3.1.

    See Also
    --------
    SlidingWindowUCB : cheaper exploration when changes are abrupt but not adversarial.
    """

    name: ClassVar[str] = "exp3"
    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "gains", "chosen", "chosen_probability")

    def __init__(self, n_arms: int, *, horizon: int | None = None, switches: int = 0, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._horizon = None if horizon is None else whole("horizon", horizon, minimum=1)
        self._switches = whole("switches", switches, minimum=0)
        weight = self._prior_weights.sum()
        average = (self._prior_weights * self._prior_means).sum() / weight if weight > 0 else 0.0
        self._gains = self._n_arms * self._prior_weights * (self._prior_means - average)
        self._chosen = -1
        self._chosen_probability = 1.0

    def probabilities(self) -> np.ndarray:
        """What the next `select` draws from (float64, shape [n_arms], sums to 1)."""
        rate, _ = self._rate_and_time(self._rounds + 1)
        return (1.0 - rate) * self._weights(rate) + rate / self._n_arms

    def _select(self, features: np.ndarray | None) -> int:
        probabilities = self.probabilities()
        # the last arm takes what is left of [0, 1), so that rounding in the sum cannot select an arm beyond it
        arm = int(probabilities[:-1].cumsum().searchsorted(self._rng.random(), side="right"))
        self._chosen, self._chosen_probability = arm, float(probabilities[arm])
        return arm

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        super()._update(arm, reward, features)
        gain = reward / self._chosen_probability
        if not self._switches:
            self._gains[arm] += gain
            return
        rate, time = self._rate_and_time(self._rounds)
        weights = self._weights(rate)
        weights[arm] *= math.exp(gain * rate / self._n_arms)  # at most e: the played probability is at least rate / K
        self._gains = np.log(weights + math.e / (time * self._n_arms)) * (self._n_arms / rate)

    def _weights(self, rate: float) -> np.ndarray:
        weights = np.exp((self._gains - self._gains.max()) * (rate / self._n_arms))
        return weights / weights.sum()

    def _rate_and_time(self, rounds: int) -> tuple[float, float]:
        """(g, t) of the formulas above in round number `rounds`, 1 being the first."""
        arms = self._n_arms
        time = self._horizon or rounds + float(self._prior_weights.sum())
        spread = (self._switches + 1) * math.log(arms * time) + math.e if self._switches else math.log(arms)
        return min(1.0, math.sqrt(arms * spread / ((math.e - 1.0) * time))), time

    def _check_arm(self, arm: int) -> int:
        arm = super()._check_arm(arm)
        if not self._awaiting or arm != self._chosen:
            last = f"arm {self._chosen}" if self._awaiting else "none (each select allows one update)"
            raise ValueError(f"exp3 learns only from the arm that it selected last: {last}, got arm {arm}")
        return arm
