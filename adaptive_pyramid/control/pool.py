"""What control may know of the tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import Route, all_routes
from ..throughput import CostModel
from .warm_start import WarmStart


@dataclass(frozen=True)
class Pool:
    """What control may know of the tiers.

    Args:
        n_tiers: how many. model_tiers: those with a model of their own (the others only stand at the bottom of routes).
        costs: forward times. measured: False while they are only proportional to the bytes a forward reads.
        warm_start: what is known of acceptance before the first block, or None.
    """

    n_tiers: int
    model_tiers: tuple[int, ...]
    costs: CostModel
    measured: bool
    warm_start: WarmStart | None = None

    @classmethod
    def of(
        cls, n_tiers: int, weights: Mapping[int, int], costs: CostModel | None, warm_start: WarmStart | None = None
    ) -> Pool:
        """A pool from each model tier's weight bytes and, if known, measured costs.

        Without measurements c_k(m) starts as bytes read per forward, m of up to 64 adding half: decoding one request is
        bound by memory bandwidth. Only ratios matter, and the first blocks replace them.
        """
        measured = costs is not None
        if costs is None:
            nominal_bandwidth = 20e9
            costs = CostModel(
                {
                    tier: {width: size / nominal_bandwidth * (1 + width / 128) for width in (1, 8, 64)}
                    for tier, size in weights.items()
                }
            )
        return cls(n_tiers, tuple(sorted(weights)), costs, measured, warm_start)

    def routes(self) -> list[Route]:
        """Every chain this pool can run: model-less tiers only at the bottom; then fall-through bottoms."""
        chains = [route for route in all_routes(self.n_tiers) if all(tier in self.model_tiers for tier in route[1:])]
        falls: list[Route] = [
            ((route[0], route[1]), *route[2:])
            for route in chains
            if len(route) > 2 and route[0] not in self.model_tiers
        ]
        return chains + falls
