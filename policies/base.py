"""What every bandit policy shares: the two calls, priors as pseudo-observations, checks, saved state."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np

# With less than this much of an observation left (all of it forgotten, no prior) an arm counts as unknown.
FORGOTTEN = 1e-9


class Policy:
    """Base of all policies: chooses one of `n_arms` arms per round and learns from rewards in [0, 1].

    A round is one `select` and the `update` calls that follow it::

        arm = policy.select(context)
        policy.update(arm, reward, context)

    `update` may be called for other arms too, in any number, when their rewards are known without playing them
    (full-information feedback). All of them belong to the same round, so a policy that forgets ages its memory once
    per round, not once per call. Only `Exp3` refuses: its estimate needs the probability of the arm that was played.

    An arm that nothing is known about is played first, lowest index first; ties go to the lowest index. So the order
    of the arms is an order of preference. Policies without random choices ignore `seed`, policies without a context
    ignore `context`: any policy can stand in for any other.

    Parameters
    ----------
    n_arms : int
        Number of arms, at least 1.
    prior_means : float or sequence of n_arms floats in [0, 1], optional
        What each arm is believed to pay before it was ever played.
    prior_weights : float or sequence of n_arms non-negative floats, optional
        How many observations each prior mean is worth (pseudo-observations); 1 when only `prior_means` is given.
        Weight 0 means unknown. Priors do not age: in a policy that forgets, an arm returns to its prior.
    seed : int or None
        Seed of the private random generator; None draws one from the operating system.

    Subclasses define `_scores` (the default `_select` plays the arm of the highest score) and, if they keep more than
    counts and sums, name the extra attributes (without the underscore) in `_state`: float arrays, lists of tuples, or
    plain values.
    """

    name: ClassVar[str]
    _state: ClassVar[tuple[str, ...]] = ("prior_means", "prior_weights", "counts", "sums", "rounds", "awaiting")

    def __init__(
        self,
        n_arms: int,
        *,
        prior_means: float | Sequence[float] | None = None,
        prior_weights: float | Sequence[float] | None = None,
        seed: int | None = 0,
    ) -> None:
        self._n_arms = whole("n_arms", n_arms, minimum=1)
        if prior_means is None and prior_weights is not None:
            raise ValueError(f"prior_weights={prior_weights!r} says nothing without prior_means")
        default_weight = 0.0 if prior_means is None else 1.0
        self._prior_means = _per_arm("prior_means", prior_means, 0.0, self._n_arms, maximum=1.0)
        self._prior_weights = _per_arm("prior_weights", prior_weights, default_weight, self._n_arms)
        self._counts = np.zeros(self._n_arms)
        self._sums = np.zeros(self._n_arms)
        self._rounds = 0
        self._awaiting = False  # True between a select and the first update after it
        self._rng = np.random.default_rng(seed)

    # ------------------------------------------------------------------ the two calls

    def select(self, context: Sequence[float] | None = None) -> int:
        """The arm to play now, 0 <= arm < n_arms. Raises ValueError for a context that the policy cannot use."""
        arm = self._select(self._check_context(context))
        self._awaiting = True
        return arm

    def update(self, arm: int, reward: float, context: Sequence[float] | None = None) -> None:
        """Learn that `arm` paid `reward` in [0, 1] (under `context`, the one given to `select`).

        Raises ValueError or TypeError, and learns nothing, if the arm, the reward or the context is invalid.
        """
        arm = self._check_arm(arm)
        reward = _check_reward(reward)
        features = self._check_context(context)
        if self._awaiting:
            self._awaiting = False
            self._rounds += 1
            self._begin_round()
        self._update(arm, reward, features)

    # ------------------------------------------------------------------ explanation

    @property
    def n_arms(self) -> int:
        """Number of arms."""
        return self._n_arms

    @property
    def counts(self) -> np.ndarray:
        """Observations per arm that the policy still remembers, without the prior's (float64 copy, shape [n_arms])."""
        return self._counts.copy()

    @property
    def means(self) -> np.ndarray:
        """Estimated reward per arm, prior included; NaN where nothing is known (float64 copy, shape [n_arms])."""
        weights = self._counts + self._prior_weights
        known = weights > FORGOTTEN
        means = np.full(self._n_arms, math.nan)
        return np.divide(self._prior_means * self._prior_weights + self._sums, weights, out=means, where=known)

    # ------------------------------------------------------------------ saved state

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, the priors and the generator's state, as plain numbers, strings, lists and dicts.

        Options (an epsilon, a discount, a window) are the constructor's business and are not part of it.
        """
        state: dict[str, Any] = {"policy": self.name, "n_arms": self._n_arms}
        for field in self._state:
            value = getattr(self, f"_{field}")
            if isinstance(value, np.ndarray):
                value = value.tolist()
            elif isinstance(value, list):
                value = [list(entry) for entry in value]
            state[field] = value
        state["rng"] = self._rng.bit_generator.state
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises ValueError, changing nothing, if it does not fit this policy."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a policy's state must be a mapping, got {type(state).__name__}")
        state = self._upgraded(state)
        for field, own in (("policy", self.name), ("n_arms", self._n_arms)):
            if state.get(field) != own:
                raise ValueError(f"this is a state of {field}={state.get(field)!r}, the policy has {field}={own!r}")
        if wrong := sorted(set(state) ^ {"policy", "n_arms", "rng", *self._state}):
            raise ValueError(f"state of {self.name!r} has missing or unknown keys: {', '.join(map(repr, wrong))}")
        values = {field: _restored(field, state[field], getattr(self, f"_{field}")) for field in self._state}
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = state["rng"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"state of {self.name!r} has an unusable 'rng': {error}") from error
        for field, value in values.items():
            setattr(self, f"_{field}", value)
        self._rng = rng

    def _upgraded(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """`state` with what earlier versions did not save."""
        return state

    # ------------------------------------------------------------------ what subclasses fill in

    def _select(self, features: np.ndarray | None) -> int:
        """The arm of the highest score, or the first arm that nothing is known about."""
        weights = self._counts + self._prior_weights
        rarest = int(weights.argmin())
        if weights[rarest] < FORGOTTEN:
            return rarest
        means = (self._prior_means * self._prior_weights + self._sums) / weights
        return int(self._scores(weights, means, features).argmax())

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        """Score per arm (shape [n_arms]) from the observations per arm, prior included (all > 0), and their mean."""
        raise NotImplementedError

    def _update(self, arm: int, reward: float, features: np.ndarray | None) -> None:
        self._counts[arm] += 1.0
        self._sums[arm] += reward

    def _begin_round(self) -> None:
        """Called once per round, before its first update: where a policy forgets."""

    def _check_arm(self, arm: int) -> int:
        if type(arm) is not int:  # numpy integers are welcome; a bool is most likely a swapped argument
            if isinstance(arm, bool) or not hasattr(arm, "__index__"):
                raise TypeError(f"arm must be an int, got {arm!r}")
            arm = operator.index(arm)
        if not 0 <= arm < self._n_arms:
            raise ValueError(f"arm must be in [0, {self._n_arms - 1}], got {arm}")
        return arm

    def _check_context(self, context: Sequence[float] | None) -> np.ndarray | None:
        return None


def whole(field: str, value: object, minimum: int) -> int:
    """`value` if it is an int of at least `minimum`; else TypeError or ValueError naming the field."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{field} must be an int of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{field} must be at least {minimum}, got {value}")
    return int(value)


def number(field: str, value: object, minimum: float, maximum: float = math.inf) -> float:
    """`value` as a float if it is finite and in [minimum, maximum]; else TypeError or ValueError naming the field."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{field} must be a number, got {value!r}")
    as_float = float(value)
    if not math.isfinite(as_float) or not minimum <= as_float <= maximum:
        raise ValueError(f"{field} must be a finite number in [{minimum:g}, {maximum:g}], got {value!r}")
    return as_float


def positive(field: str, value: object, maximum: float = math.inf) -> float:
    """`value` as a float if it is finite and in (0, maximum]; else TypeError or ValueError naming the field."""
    value = number(field, value, 0.0, maximum)
    if value == 0.0:
        raise ValueError(f"{field} must be greater than 0, got {value!r}")
    return value


def _check_reward(reward: float) -> float:
    if type(reward) is not float:
        if not isinstance(reward, (Real, np.bool_)):
            raise TypeError(f"reward must be a number in [0, 1], got {reward!r}")
        reward = float(reward)
    if not 0.0 <= reward <= 1.0:  # false for NaN too
        raise ValueError(f"reward must be in [0, 1], got {reward!r}")
    return reward


def _per_arm(
    field: str, values: float | Sequence[float] | None, default: float, n_arms: int, maximum: float = math.inf
) -> np.ndarray:
    """One float in [0, maximum] per arm (float64, shape [n_arms]); a single number stands for all arms."""
    if values is None:
        values = [default] * n_arms
    elif isinstance(values, (float, Real)):
        values = [values] * n_arms
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"{field} must be a number or a sequence of numbers, got {values!r}")
    if len(values) != n_arms:
        raise ValueError(f"{field} must have one entry for each of the {n_arms} arms, got {len(values)}")
    return np.array([number(f"{field}[{arm}]", value, 0.0, maximum) for arm, value in enumerate(values)])


def _restored(field: str, saved: Any, current: Any) -> Any:
    """`saved` as what `current` is: an array of the same shape, a list of tuples, or a plain value of the same type."""
    try:
        if isinstance(current, np.ndarray):
            value = np.array(saved, dtype=np.float64)
            if value.shape != current.shape or not np.isfinite(value).all():
                raise ValueError(f"finite numbers of shape {current.shape} expected, got shape {value.shape}")
            return value
        if isinstance(current, list):
            return [tuple(entry) for entry in saved]
        if type(saved) is not type(current):
            raise TypeError(f"{type(current).__name__} expected, got {saved!r}")
        return saved
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field!r} in the state does not fit: {error}") from error
