"""What `tuning.blocks` fills: every block of one config, as arrays, and what forwards cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptive_pyramid.throughput import CostModel
from tuning.traces import Header

COUNTS = ("rounds", "proposed", "accepted", "rejected", "emitted")


class Prices:
    """A cost table as dense arrays, so that many forwards are priced by one index.

    Raises:
        ValueError: a tier with a model has no costs (CostModel would call it free).
    """

    def __init__(self, costs: CostModel, header: Header, widest: int) -> None:
        missing = [header.tiers[tier].name for tier in header.models if tier not in costs.table]
        if missing:
            raise ValueError(
                f"the cost table has no row for {', '.join(missing)}; expected one for every tier with a model"
            )
        self.rows = {
            tier: np.array([costs.seconds(tier, width) for width in range(widest + 1)]) for tier in header.models
        }

    def __call__(self, tier: int, width: np.ndarray | int) -> np.ndarray:
        return self.rows[tier][width]


@dataclass
class Event:
    """One draft (tier proposes, `accepted` None) or verification, for the lanes (rows of the table) it happened in."""

    tier: int
    lane: np.ndarray
    pos: np.ndarray
    width: np.ndarray
    proposer: np.ndarray
    proposed: np.ndarray
    on_path: np.ndarray
    token: np.ndarray
    owner: np.ndarray
    off: bool = False
    accepted: np.ndarray | None = None
    rejected: np.ndarray | None = None
    emitted: np.ndarray | None = None


@dataclass
class BlockTable:
    """Row i is the block that starts at slot `starts[i]`. All arrays are [rows].

    Args:
        tokens: emitted. seconds: modelled, with every cache up to date. forwards: tier -> passes.
        counts: verifying tier -> name (COUNTS) -> sums.
        estimated: counters of tiers below the target hold draws. unseen: draft passes behind a token already refused.
        first: tier -> width of its first forward (0: not used). cached: tier -> slot up to which its cache then holds
            the final text.
    """

    starts: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    forwards: dict[int, np.ndarray]
    counts: dict[int, dict[str, np.ndarray]]
    estimated: np.ndarray
    unseen: np.ndarray
    first: dict[int, np.ndarray]
    cached: dict[int, np.ndarray]
    events: list[Event] | None = None
