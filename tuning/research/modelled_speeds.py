"""What a study's traces say of every setting, by replay and cost table.

Along the target's text they are exact for greedy lossless two-tier routes; what lies off that text (deeper routes after a
mismatch, anything behind a drifting acceptance) is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from adaptive_pyramid.config import PyramidConfig, Route
from adaptive_pyramid.decoding.method import METHODS, Method
from adaptive_pyramid.throughput import CostModel, ThroughputModel, insertion_advice
from tuning.replay.engine import Replay
from tuning.statistics import Interval, share

LENGTHS_D = (1, 2, 3, 4, 6, 8, 12)
LENGTHS_Q = (1, 2, 3, 4, 6, 8, 12, 16, 24)


@dataclass(frozen=True)
class TierPair:
    """A verifying tier and the tier right below it."""

    proposer: int
    verifier: int


@dataclass(frozen=True)
class ReplayedInsertion:
    """Whether a middle tier pays on a route, at the best lengths for the route with it and, apart, without it.

    Ratios are to target-only decoding, by replay. `cost_ratio` and `bound` are the two sides of the insertion theorem
    (arXiv 2510.26527, Thm 3.2: it pays when the first is below the second), at the lengths of the route with the tier.
    """

    route: Route
    tier: int
    with_config: PyramidConfig
    with_ratio: float
    without_config: PyramidConfig
    without_ratio: float
    cost_ratio: float
    bound: float

    @property
    def pays(self) -> bool:
        return self.with_ratio > self.without_ratio


@dataclass
class ModelledSpeeds:
    """Speed and acceptance of any config on the traces of one study.

    Args:
        names: of the tiers, draft first. replay: the traces under the study's method.
        replay_of: the same traces under another method.
    """

    names: tuple[str, ...]
    replay: Replay
    replay_of: Callable[[Method], Replay]
    _seconds: dict[tuple[PyramidConfig, Method], np.ndarray] = field(default_factory=dict, repr=False)
    _replays: dict[Method, Replay] = field(default_factory=dict, repr=False)

    @property
    def method(self) -> Method:
        return self.replay.method

    @property
    def costs(self) -> CostModel:
        return self.replay.costs

    @property
    def target(self) -> int:
        return len(self.names) - 1

    @property
    def models(self) -> list[int]:
        """Tiers with a model of their own: a lookup costs nothing and verifies nothing."""
        return sorted(self.costs.table)

    @property
    def stages(self) -> list[TierPair]:
        """Every tier that can verify, with every tier that can propose to it."""
        return [TierPair(low, high) for high in self.models for low in range(high)]

    @property
    def n_traces(self) -> int:
        return len(self.replay.traces)

    @cached_property
    def n_positions(self) -> int:
        return self.replay.traces.tokens

    def named(self, name: str) -> Method:
        """A method by name, under the divergence that the traces recorded."""
        return replace(METHODS[name], divergence=self.method.divergence)

    def entropies(self, tier: int) -> list[float]:
        """Entropy in nats of the tier's distribution at every position of the traces; [] for tiers without one."""
        values = np.concatenate([trace.entropy[tier] for trace in self.replay.traces])
        return values[~np.isnan(values)].tolist()

    def rule(self, stage: TierPair) -> str:
        """The rule whose tau the pictures vary: the stage's own, or `relaxed` where its own has no tau."""
        own = self.method.rule(stage.verifier == self.target)
        return own if own in ("fuzzy", "relaxed") else "relaxed"

    def acceptance_by_tau(self, stage: TierPair, taus: Sequence[float]) -> list[float]:
        """Share of single proposed tokens that the verifier keeps, per tau; proposals along the target's text."""
        return [_share(self._verdicts(stage, tau, 1)[0]).value for tau in taus]

    def acceptance_by_position(self, stage: TierPair, tau: float, length: int) -> list[tuple[float, float, float]]:
        """Per position: (acceptance given that everything before it was accepted, low, high), 95 % Wilson interval."""
        return [_share(position) for position in self._verdicts(stage, tau, length)]

    def _verdicts(self, stage: TierPair, tau: float, length: int) -> list[tuple[int, int]]:
        """Per position of proposals of `length` tokens, one starting at every token of the text: (accepted, tested)."""
        return self._replay(self.method).by_offset(stage.proposer, stage.verifier, self.rule(stage), tau, length)

    def seconds(self, config: PyramidConfig, method: Method | None = None) -> np.ndarray:
        """Seconds per trace, by replay and cost table. float64 [traces]"""
        method = method or self.method
        key = (config.normalized(), method)
        if key not in self._seconds:
            self._seconds[key] = self._replay(method).play(config).by_trace["seconds"]
        return self._seconds[key]

    def _replay(self, method: Method) -> Replay:
        if method not in self._replays:
            self._replays[method] = self.replay if method == self.method else self.replay_of(method)
        return self._replays[method]

    def ratio(self, config: PyramidConfig, method: Method | None = None) -> float:
        """Modelled tokens/s over those of target-only decoding."""
        alone = self.seconds(config.with_route((config.target,)), self.method)
        return float(alone.sum() / self.seconds(config, method).sum())

    @cached_property
    def pyramid_route(self) -> Route | None:
        """The chain draft > qualifier > target that replay finds fastest; None with fewer than two models and three tiers."""
        chains = [
            (draft, qualifier, self.target)
            for qualifier in self.models
            if qualifier < self.target
            for draft in range(qualifier)
        ]
        return max(chains, key=lambda route: self.ratio(self.best_lengths(route)), default=None)

    def config(self, route: Route, lengths: Sequence[int], taus: Sequence[float] | None = None) -> PyramidConfig:
        """A config of `route` with the lengths and taus of its verifying tiers in order; other stages plain."""
        config = PyramidConfig.simple([1] * self.target, None, route)
        for tier, length, tau in zip(route[1:], lengths, taus or [0.0] * len(lengths)):
            config = config.with_stage(tier, length=length, tau=tau)
        return config

    def best_lengths(
        self, route: Route, method: Method | None = None, taus: Sequence[float] | None = None
    ) -> PyramidConfig:
        """The fastest lengths of a route by replay, by coordinate ascent over LENGTHS_Q."""
        lengths = [4] * (len(route) - 1)
        if not lengths:
            return self.config(route, lengths)
        for _ in range(3):
            before = list(lengths)
            for i in range(len(lengths)):
                lengths[i] = max(
                    LENGTHS_Q,
                    key=lambda length: self.ratio(
                        self.config(route, [*lengths[:i], length, *lengths[i + 1 :]], taus), method
                    ),
                )
            if lengths == before:
                break
        return self.config(route, lengths, taus)

    def length_map(self, route: Route, taus: Sequence[float] | None = None, method: Method | None = None) -> np.ndarray:
        """Modelled ratio by (l_D, l_Q). float64 [len(LENGTHS_D), len(LENGTHS_Q)]"""
        return np.array([[self.ratio(self.config(route, (d, q), taus), method) for q in LENGTHS_Q] for d in LENGTHS_D])

    def tau_map(self, config: PyramidConfig, taus: Sequence[float], method: Method) -> np.ndarray:
        """Modelled ratio by (tau_Q, tau_T) at the lengths of a three-tier config. float64 [len(taus), len(taus)]"""
        lengths = [config.stage(tier).length for tier in config.route[1:]]
        return np.array([[self.ratio(self.config(config.route, lengths, (q, t)), method) for t in taus] for q in taus])

    def advice(self) -> list[ReplayedInsertion]:
        """For every three-tier chain: what its middle tier earns."""
        found = []
        for qualifier in self.models:
            for draft in range(qualifier) if qualifier < self.target else ():
                route = (draft, qualifier, self.target)
                best, without = self.best_lengths(route), self.best_lengths((draft, self.target))
                replay = self._replay(self.method)
                pairs = {**replay.acceptance(best), **replay.acceptance(best.with_route((draft, self.target)))}
                theorem = insertion_advice(ThroughputModel(self.costs, pairs, self.replay.overhead), best, qualifier)
                found.append(
                    ReplayedInsertion(
                        route,
                        qualifier,
                        best,
                        self.ratio(best),
                        without,
                        self.ratio(without),
                        theorem.cost_ratio,
                        theorem.bound,
                    )
                )
        return found


def _share(counts: tuple[int, int]) -> Interval:
    """(accepted, tested) as a share."""
    accepted, tested = counts
    return share(accepted / max(tested, 1), tested)
