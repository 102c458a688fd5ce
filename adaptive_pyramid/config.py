"""What control may change between blocks: the length, threshold and early stop of every stage, and the route.

Torch-free. The words are those of PyramidSD (arXiv 2510.12966) and Polybasic speculative decoding (arXiv 2510.26527).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .errors import check_int, check_keys, check_number

MAX_LENGTH = 256

RouteEntry = int | tuple[int, ...]
Route = tuple[RouteEntry, ...]


@dataclass(frozen=True, slots=True)
class StageConfig:
    """How one tier verifies what the tier below proposed.

    Args:
        length: tokens asked of the tier below per verification (a mid tier may overshoot by part of one of its rounds).
        tau: acceptance threshold, in the unit of the method's divergence (nats for `js` and `kl`, none for `tv`);
            0 switches the relaxation off.
        stop: proposing ends early after a token whose distribution had more entropy than this many nats; the token itself is
            kept (dropping it would bias the output). None = never. Reads the host once per drafted token.
    """

    length: int
    tau: float = 0.0
    stop: float | None = None

    def __post_init__(self) -> None:
        check_int("StageConfig.length", self.length, 1)
        if self.length > MAX_LENGTH:
            raise ValueError(f"StageConfig.length must be at most {MAX_LENGTH}, got {self.length}")
        object.__setattr__(self, "tau", check_number("StageConfig.tau", self.tau, minimum=0.0))
        if self.stop is not None:
            object.__setattr__(self, "stop", check_number("StageConfig.stop", self.stop, minimum=0.0))

    def to_dict(self) -> dict[str, Any]:
        return {"length": self.length, "tau": self.tau, "stop": self.stop}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StageConfig:
        check_keys("a stage", data, ("length", "tau", "stop"), required=("length",))
        return cls(**data)


@dataclass(frozen=True, slots=True)
class PyramidConfig:
    """One stage per verifying tier, and the tiers in use.

    Args:
        stages: `stages[k - 1]` belongs to tier k, for k = 1 .. N - 1; a tier keeps its stage whatever the route.
        route: tiers in use from bottom to top, the target (N - 1) last. `(2,)` is target only, `(0, 2)` two-model
            decoding, `(0, 1, 2)` the pyramid. The first entry may be a tuple: `((0, 1), 2)` means the first of tiers
            0 and 1 that does not abstain. Default: all tiers.

    Raises:
        ValueError: a route that is empty, not increasing, or does not end at the target.
    """

    stages: tuple[StageConfig, ...]
    route: Route = ()

    def __post_init__(self) -> None:
        stages = tuple(self.stages)
        for stage in stages:
            if not isinstance(stage, StageConfig):
                raise TypeError(f"PyramidConfig.stages must hold StageConfig objects, got {stage!r}")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "route", _checked_route(self.route or tuple(range(self.n_tiers)), self.n_tiers))

    @classmethod
    def simple(cls, lengths: Sequence[int], taus: Sequence[float] | None = None, route: Route = ()) -> PyramidConfig:
        """A config from plain lists: lengths (l_D, l_Q, ...) and, if given, as many taus."""
        taus = [0.0] * len(lengths) if taus is None else taus
        if len(taus) != len(lengths):
            raise ValueError(f"taus must have as many entries as lengths ({len(lengths)}), got {len(taus)}")
        return cls(tuple(StageConfig(length, tau) for length, tau in zip(lengths, taus)), route)

    @property
    def n_tiers(self) -> int:
        return len(self.stages) + 1

    @property
    def target(self) -> int:
        """Index of the target tier."""
        return len(self.stages)

    def stage(self, tier: int) -> StageConfig:
        """The stage of verifying tier `tier` (1 .. N - 1)."""
        return self.stages[self._checked_tier(tier) - 1]

    @property
    def tiers(self) -> tuple[int, ...]:
        """Every tier the route can use, from bottom to top."""
        return tuple(tier for entry in self.route for tier in (entry if isinstance(entry, tuple) else (entry,)))

    @property
    def verifiers(self) -> tuple[int, ...]:
        """The tiers of the route that verify, from bottom to top: all entries but the lowest, none of them a tuple."""
        return tuple(entry for entry in self.route[1:] if isinstance(entry, int))

    # The papers' names. With two tiers there is no qualifier, so l_Q and tau_Q do not exist.
    @property
    def l_D(self) -> int:
        return self.stages[0].length

    @property
    def l_Q(self) -> int:
        return self._qualified("l_Q").length

    @property
    def tau_Q(self) -> float:
        self._qualified("tau_Q")
        return self.stages[0].tau

    @property
    def tau_T(self) -> float:
        return self.stages[-1].tau

    def _qualified(self, name: str) -> StageConfig:
        if self.n_tiers < 3:
            raise AttributeError(f"{name} needs a qualifier; this config has {self.n_tiers} tiers")
        return self.stages[-1]

    def with_route(self, route: Route) -> PyramidConfig:
        return replace(self, route=route)

    def with_stage(self, tier: int, **changes: Any) -> PyramidConfig:
        """A copy in which the stage of verifying tier `tier` has `changes` (length, tau, stop)."""
        stages = list(self.stages)
        stages[tier - 1] = replace(self.stage(tier), **changes)
        return replace(self, stages=tuple(stages))

    def _checked_tier(self, tier: int) -> int:
        if not 1 <= tier <= self.target:
            raise ValueError(f"tier {tier!r} has no stage; expected one of the verifying tiers 1 to {self.target}")
        return tier

    def normalized(self) -> PyramidConfig:
        """The same decoding with every knob that this route cannot use set to its plainest value, for comparisons."""
        used = set(self.route[1:])
        stages = tuple(s if k in used else StageConfig(1) for k, s in enumerate(self.stages, start=1))
        return replace(self, stages=stages)

    @property
    def label(self) -> str:
        """Short text: route, then lengths (and taus where set) of the stages in use: `0>1>2 l=4,8 tau=.2,0`."""
        stages = [self.stage(tier) for tier in self.verifiers]
        text = route_label(self.route)
        if stages:
            text += " l=" + ",".join(str(stage.length) for stage in stages)
            if any(stage.tau for stage in stages):
                text += " tau=" + ",".join(f"{stage.tau:g}" for stage in stages)
            if any(stage.stop is not None for stage in stages):
                text += " stop=" + ",".join("-" if stage.stop is None else f"{stage.stop:g}" for stage in stages)
        return text

    def to_dict(self) -> dict[str, Any]:
        route = [list(entry) if isinstance(entry, tuple) else entry for entry in self.route]
        return {"route": route, "stages": [stage.to_dict() for stage in self.stages]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PyramidConfig:
        """The inverse of `to_dict`; raises ValueError or TypeError naming what is wrong."""
        check_keys("a config", data, ("route", "stages"), required=("route", "stages"))
        if not isinstance(data["stages"], Sequence) or not isinstance(data["route"], Sequence):
            raise TypeError("config: route and stages must be lists")
        for stage in data["stages"]:
            if not isinstance(stage, Mapping):
                raise TypeError(f"config: a stage must be a mapping with length, tau and stop, got {stage!r}")
        route = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in data["route"])
        return cls(tuple(StageConfig.from_dict(stage) for stage in data["stages"]), route)


def route_label(route: Route) -> str:
    """`(0, 1, 2)` -> `0>1>2`; `((0, 1), 2)` -> `0|1>2`."""
    return ">".join("|".join(map(str, entry)) if isinstance(entry, tuple) else str(entry) for entry in route)


def all_routes(n_tiers: int) -> list[tuple[int, ...]]:
    """Every plain chain that ends at the target, shortest first: `(2,), (0, 2), (1, 2), (0, 1, 2)` for three tiers."""
    check_int("n_tiers", n_tiers, 1)
    chains: list[tuple[int, ...]] = [()]
    for tier in range(n_tiers - 1):
        chains += [(*chain, tier) for chain in chains]
    return sorted(((*chain, n_tiers - 1) for chain in chains), key=lambda route: (len(route), route))


def _checked_route(route: Any, n_tiers: int) -> Route:
    expected = f"a route must be increasing tier numbers that end at the target ({n_tiers - 1}), such as {tuple(range(n_tiers))}"
    if not isinstance(route, (tuple, list)):
        raise TypeError(f"{expected}; got {route!r}")
    entries = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in route)
    flat = [tier for entry in entries for tier in (entry if isinstance(entry, tuple) else (entry,))]
    if any(isinstance(tier, bool) or not isinstance(tier, int) for tier in flat):
        raise TypeError(f"{expected}; got {route!r}")
    if any(isinstance(entry, tuple) and len(entry) < 2 for entry in entries):
        raise ValueError(f"a fall-through entry needs at least two tiers; got {route!r}")
    if any(isinstance(entry, tuple) for entry in entries[1:]) or isinstance(entries[-1], tuple):
        raise ValueError(f"only the bottom entry of a route may be a fall-through tuple; got {route!r}")
    if not flat or flat[-1] != n_tiers - 1 or flat[0] < 0 or any(a >= b for a, b in zip(flat, flat[1:])):
        raise ValueError(f"{expected}; got {route!r}")
    return entries
