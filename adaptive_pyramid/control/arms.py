"""The configs control chooses among: few, explicit, and each the best of its route under some circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..config import PyramidConfig, Route
from ..throughput import Acceptance, CostModel, ThroughputModel
from .pool import Pool

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
LIMIT = 32

# Guesses, for pairs nobody has seen at work yet; the first blocks replace them.
MODEL_PAIR = Acceptance(rate=0.7)
LOOKUP = Acceptance(rate=0.6, hit=0.3)
# Rates at which a config has to be the best of its route to become an arm.
_RATES = (0.4, 0.6, 0.8, 0.93)
_WEAK_BELOW_STRONG = 0.5, 0.95  # a qualifier that the target nearly always agrees with, over a draft that often fails

# Thresholds below an exact target, where they cost no quality: total variation in sampling, nats of regret in greedy
# decoding; the two happen to want the same numbers.
FREE_TAUS = (0.1, 0.4)
# Thresholds at a target that may drift, as multiples of the budget per token: what one accepted token may spend.
BUDGET_MULTIPLES = (2.0, 8.0, 32.0)


def guessed_acceptance(pool: Pool) -> dict[tuple[int, int], Acceptance]:
    """What to expect of every (proposer, verifier) pair: what a warm start says; else model pairs accept .7, and a lookup
    hits at .3 of its chances and accepts .6."""
    guesses = {
        (proposer, verifier): MODEL_PAIR if proposer in pool.model_tiers else LOOKUP
        for verifier in range(1, pool.n_tiers)
        for proposer in range(verifier)
    }
    return guesses | dict(pool.warm_start.acceptance if pool.warm_start else {})


def shortened(config: PyramidConfig, cap: int) -> PyramidConfig:
    """`config` with every length at most `cap`."""
    for tier in config.verifiers:
        if config.stage(tier).length > cap:
            config = config.with_stage(tier, length=cap)
    return config


def candidate_configs(
    base: PyramidConfig,
    pool: Pool,
    route: Route | None = None,
    drift_budget: float | None = None,
    free_taus: bool = True,
    limit: int = LIMIT,
) -> list[PyramidConfig]:
    """Arms around `base`: at most `limit` configs, target only first, none twice.

    Every route of the pool is represented. Of a route's grid of lengths (`LENGTHS` and the base's own) those stay that
    throughput.py ranks first at some acceptance rate; a drift budget multiplies them by thresholds at the target, a
    chain that ends in an exact target by thresholds below it. The rest of the limit is given in turn to the routes, by
    rank at the guessed rates.

    Args:
        route: the only one that may be used; thresholds then stay the base's, for they belong to the method that pins it.
        drift_budget: per token; thresholds at the target stay the base's without one.
        free_taus: whether the target is exact, so that thresholds below it cost no quality.
    """
    guess, costs = guessed_acceptance(pool), pool.costs
    free_taus = free_taus and route is None and not drift_budget
    queues = []
    for chain in pool.routes() if route is None else [route]:
        plain = base.with_route(chain).normalized()
        if len(chain) == 1:
            queues.append([plain])
            continue
        taus_at_target = [drift_budget * multiple for multiple in BUDGET_MULTIPLES] if drift_budget else [plain.tau_T]
        kept = _best_somewhere(plain, guess, costs)
        queue = [config.with_stage(base.target, tau=tau) for config in kept for tau in taus_at_target]
        if free_taus and len(chain) > 2:
            queue += [_with_lower_tau(config, tau) for config in kept[:2] for tau in FREE_TAUS]
        own = [plain] if chain == base.route and not drift_budget else []
        queues.append(list(dict.fromkeys(own + queue)))
    queues.sort(key=lambda queue: len(queue[0].route) > 1)
    return _round_robin(queues, limit)


def _best_somewhere(
    plain: PyramidConfig, guess: dict[tuple[int, int], Acceptance], costs: CostModel
) -> list[PyramidConfig]:
    """Configs of one route that some acceptance rates make the fastest, the one for the guessed rates first."""
    stages = plain.verifiers
    grid = [plain]
    for tier in stages:
        lengths = sorted({*LENGTHS, plain.stage(tier).length})
        grid = [config.with_stage(tier, length=length) for config, length in product(grid, lengths)]
    # A stage that asks for less than one round of the stage below yields is that round all the same.
    grid = [
        config
        for config in grid
        if all(config.stage(lower).length <= config.stage(upper).length for lower, upper in zip(stages, stages[1:]))
    ]
    kept = [_fastest(grid, ThroughputModel(costs, guess))]
    weak, strong = _WEAK_BELOW_STRONG
    for lower, top in (*((rate, rate) for rate in _RATES), (weak, strong)):
        acceptance = {
            pair: Acceptance(top if pair[1] == plain.target else lower, known.hit) for pair, known in guess.items()
        }
        kept.append(_fastest(grid, ThroughputModel(costs, acceptance)))
    return list(dict.fromkeys(kept))


def _fastest(grid: Sequence[PyramidConfig], model: ThroughputModel) -> PyramidConfig:
    return max(grid, key=lambda config: model.predict(config).tokens_per_second)


def _with_lower_tau(config: PyramidConfig, tau: float) -> PyramidConfig:
    for tier in config.verifiers[:-1]:
        config = config.with_stage(tier, tau=tau)
    return config


def _round_robin(queues: Sequence[list[PyramidConfig]], limit: int) -> list[PyramidConfig]:
    arms: list[PyramidConfig] = []
    for rank in range(max(map(len, queues))):
        arms += [queue[rank] for queue in queues if rank < len(queue)]
    return arms[:limit]
