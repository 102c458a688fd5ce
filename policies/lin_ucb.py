"""LinUCB, disjoint model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from policies.base import Policy, number, positive, whole


class LinUCB(Policy):
    """A ridge regression of reward on context per arm; plays the highest ``theta_i . x + alpha sqrt(x A_i^-1 x)``.

    ``A_i = ridge I + sum x x^T`` and ``theta_i = A_i^-1 sum reward x`` over the observations of arm i. Both are kept
    up to date by a Sherman-Morrison step, so nothing is inverted. x is the context with a constant 1 appended: an arm
    has a mean even where the context says nothing. A prior mean of weight w is the centre of that intercept, held
    with w observations; an arm without prior starts at 0 and is played once before the rule applies.

    Prefer it when something observable before the choice tells which arm will do well (entropies, recent acceptance).
    Scale features to about [-1, 1]: the ridge and the bonus depend on it.

    Guarantees that do NOT hold here: the paper proves nothing for this rule itself; bounds for its staged variant and
    for OFUL need rewards linear in the context, fixed parameters, independent noise and an alpha that grows with
    ln(t). Nothing is forgotten. Contexts that depend on our own choices are allowed, but then regret per round is
    not all that matters. `means` ignores contexts.

    Parameters
    ----------
    context_dim : int
        Length of the context, without the constant.
    alpha : float >= 0
        Width of the confidence bound in standard deviations of unit-noise rewards.
    ridge : float > 0
        Regularisation.

    Source: Li, Chu, Langford, Schapire, "A contextual-bandit approach to personalized news article recommendation"
    (arXiv 1003.0146), algorithm 1.

    See Also
    --------
    UCB1 : without context.
    """

    name: ClassVar[str] = "lin_ucb"
    _state: ClassVar[tuple[str, ...]] = (*Policy._state, "inverses", "thetas")

    def __init__(self, n_arms: int, *, context_dim: int, alpha: float = 1.0, ridge: float = 1.0, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._context_dim = whole("context_dim", context_dim, minimum=1)
        self._alpha = number("alpha", alpha, 0.0)
        precision = np.full((self._n_arms, self._context_dim + 1), positive("ridge", ridge))
        precision[:, -1] += self._prior_weights
        self._inverses = np.eye(self._context_dim + 1) / precision[:, None, :]  # A_i^-1
        self._thetas = np.zeros_like(precision)
        self._thetas[:, -1] = self._prior_means

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        assert features is not None  # `_check_context` refuses None
        variances = (self._inverses @ features) @ features
        # max: rounding can make a variance that should be 0 negative
        return self._thetas @ features + self._alpha * np.sqrt(np.maximum(variances, 0.0))

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        assert features is not None
        super()._update(arm, reward, features)
        direction = self._inverses[arm] @ features
        gain = direction / (1.0 + features @ direction)
        self._inverses[arm] -= gain[:, None] * direction
        self._thetas[arm] += gain * (reward - self._thetas[arm] @ features)

    def _check_context(self, context: Sequence[float] | None) -> np.ndarray:
        if context is None:
            raise ValueError(f"lin_ucb needs a context of {self._context_dim} numbers in select and in update")
        features = np.ones(self._context_dim + 1)
        try:
            given = np.asarray(context, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"context must be {self._context_dim} numbers, got {context!r}") from error
        if given.shape != (self._context_dim,):
            raise ValueError(f"context must have shape ({self._context_dim},), got {given.shape}")
        features[:-1] = given
        if not math.isfinite(features @ features):
            raise ValueError(f"context must be finite, got {given.tolist()}")
        return features
