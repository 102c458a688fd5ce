"""What decoding starts from when nothing was tuned, and controllers by name. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policies import POLICIES, make_policy

from ..config import PyramidConfig, Route, StageConfig, all_routes
from ..errors import unknown_name
from ..throughput import CostModel, ThroughputModel
from .arms import candidate_configs, guessed_acceptance
from .bandit import CONTEXT_DIM, BanditController
from .controller import Controller, FixedController
from .planner import PlannerController
from .reward import SpeedReward

CONTROLS = ("fixed", "auto", "planner", "bandit", *POLICIES)


@dataclass(frozen=True)
class Pool:
    """What control may know of the tiers.

    Args:
        n_tiers: how many. model_tiers: those with a model of their own (the others only stand at the bottom of routes).
        costs: forward times. measured: False while they are only proportional to the bytes a forward reads.
    """

    n_tiers: int
    model_tiers: tuple[int, ...]
    costs: CostModel
    measured: bool

    @classmethod
    def of(cls, n_tiers: int, weights: Mapping[int, int], costs: CostModel | None) -> Pool:
        """A pool from each model tier's weight bytes and, if known, measured costs.

        Without measurements c_k(m) starts as bytes read per forward, m of up to 64 adding half: decoding one request is
        bound by memory bandwidth. Only ratios matter, and the first blocks replace them.
        """
        measured = costs is not None
        if costs is None:
            nominal_bandwidth = 20e9
            costs = CostModel({tier: {width: size / nominal_bandwidth * (1 + width / 128) for width in (1, 8, 64)}
                               for tier, size in weights.items()})
        return cls(n_tiers, tuple(sorted(weights)), costs, measured)

    def routes(self) -> list[Route]:
        """Every chain this pool can run: model-less tiers only at the bottom; then fall-through bottoms."""
        chains = [route for route in all_routes(self.n_tiers) if all(tier in self.model_tiers for tier in route[1:])]
        falls: list[Route] = [((route[0], route[1]), *route[2:]) for route in chains
                              if len(route) > 2 and route[0] not in self.model_tiers]
        return chains + falls


def default_config(n_tiers: int) -> PyramidConfig:
    """Short lengths over all tiers: 4 drafted tokens per qualifier pass, 6 accumulated per target pass."""
    lengths = [4] * max(0, n_tiers - 2) + [6] * (n_tiers > 1)
    return PyramidConfig(tuple(StageConfig(length) for length in lengths))


def make_controller(name: str, route: Route | None, config: PyramidConfig, pool: Pool,
                    drift_budget: float | None = None) -> Controller:
    """A controller by name: "fixed", "auto" (the planner), "planner", "bandit" (discounted UCB), or a policy of `policies`.

    Args:
        route: the method's own route; None = control chooses among the pool's. On a pinned route control only chooses
            lengths, thresholds stay as configured, and nothing guards against a route that does not pay.
        config: where to start, and the whole of it for "fixed". drift_budget: per token, or None.

    Raises:
        ValueError: an unknown name.
    """
    if name not in CONTROLS:
        raise ValueError(unknown_name("control", name, CONTROLS))
    if route is not None:
        config = config.with_route(route)
    if name == "fixed" or config.n_tiers == 1:
        return FixedController(config)
    routes = pool.routes() if route is None else [route]
    arms = candidate_configs(config, routes, pool.model_tiers, pool.costs, drift_budget, free_taus=route is None)
    if name in ("auto", "planner"):
        return PlannerController(arms, pool.costs, pool.model_tiers, drift_budget)
    return _bandit("discounted_ucb" if name == "bandit" else name, arms, pool, drift_budget)


def _bandit(policy: str, arms: list[PyramidConfig], pool: Pool, drift_budget: float | None) -> BanditController:
    """A policy whose prior is what the throughput formula expects at guessed acceptance rates."""
    model = ThroughputModel(pool.costs, guessed_acceptance(arms[0].n_tiers, pool.model_tiers))
    speeds = [model.predict(arm).tokens_per_second for arm in arms]
    reference = 1.5 * max(speeds)   # a fully accepted block is faster than the expected one
    options = {"context_dim": CONTEXT_DIM} if policy == "lin_ucb" else {}
    return BanditController(
        arms, make_policy(policy, len(arms), prior_means=[speed / reference for speed in speeds], prior_weights=2.0, **options),
        SpeedReward(reference, drift_budget), pool.costs, pool.model_tiers)
