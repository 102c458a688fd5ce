"""What decoding starts from when nothing was tuned, and controllers by name. No torch."""

from __future__ import annotations

from policies import POLICIES, make_policy

from ..config import PyramidConfig, Route, StageConfig
from ..errors import unknown_name
from ..throughput import ThroughputModel
from .arms import candidate_configs, guessed_acceptance
from .bandit import CONTEXT_DIM, BanditController
from .controller import Controller, FixedController
from .planner import PlannerController
from .pool import Pool
from .reward import SpeedReward

CONTROLS = ("fixed", "auto", "planner", "bandit", *POLICIES)


def default_config(n_tiers: int) -> PyramidConfig:
    """Short lengths over all tiers: 4 drafted tokens per qualifier pass, 6 accumulated per target pass."""
    lengths = [4] * max(0, n_tiers - 2) + [6] * (n_tiers > 1)
    return PyramidConfig(tuple(StageConfig(length) for length in lengths))


def make_controller(
    name: str,
    route: Route | None,
    config: PyramidConfig,
    pool: Pool,
    drift_budget: float | None = None,
    lossless: bool = True,
) -> Controller:
    """A controller by name: "fixed", "auto" (the planner), "planner", "bandit" (discounted UCB), or a policy of `policies`.

    Args:
        route: the method's own route; None = control chooses among the pool's. On a pinned route control only chooses
            lengths, thresholds stay as configured, and nothing guards against a route that does not pay.
        config: where to start, and the whole of it for "fixed". drift_budget: per token, or None.
        lossless: whether the target's rule is exact whatever the thresholds below it; only then may control vary them.

    Raises:
        ValueError: an unknown name.
    """
    if name not in CONTROLS:
        raise ValueError(unknown_name("control", name, CONTROLS))
    if route is not None:
        config = config.with_route(route)
    if name == "fixed" or config.n_tiers == 1:
        return FixedController(config)
    arms = candidate_configs(config, pool, route, drift_budget, free_taus=lossless)
    if name in ("auto", "planner"):
        return PlannerController(arms, pool, drift_budget)
    return _bandit("discounted_ucb" if name == "bandit" else name, arms, pool, drift_budget)


def _bandit(policy: str, arms: list[PyramidConfig], pool: Pool, drift_budget: float | None) -> BanditController:
    """A policy whose prior is what the throughput formula expects at guessed acceptance rates."""
    model = ThroughputModel(pool.costs, guessed_acceptance(pool))
    speeds = [model.predict(arm).tokens_per_second for arm in arms]
    reference = 1.5 * max(speeds)  # a fully accepted block is faster than the expected one
    options = {"context_dim": CONTEXT_DIM} if policy == "lin_ucb" else {}
    return BanditController(
        arms,
        make_policy(
            policy, len(arms), prior_means=[speed / reference for speed in speeds], prior_weights=2.0, **options
        ),
        SpeedReward(reference, drift_budget),
        pool,
    )
