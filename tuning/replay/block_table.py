"""What `block_simulation` fills: every block of one config, as arrays; what forwards cost, and how they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_pyramid.throughput import CostModel
from tuning.replay.position_index import NO_TOKEN
from tuning.traces.format import Header

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
class Offer:
    """Tokens, lane by lane: `length` of them; the first `on_path` are the text's; then `token`, best id of `owner`."""

    length: np.ndarray
    on_path: np.ndarray
    token: np.ndarray
    owner: np.ndarray
    proposer: np.ndarray

    @classmethod
    def none(cls, lanes: int) -> Offer:
        return cls(
            *(np.zeros(lanes, np.int64) for _ in range(2)), *(np.full(lanes, fill) for fill in (NO_TOKEN, -1, -1))
        )

    def put(self, lanes: np.ndarray, other: Offer) -> None:
        for name in ("length", "on_path", "token", "owner", "proposer"):
            getattr(self, name)[lanes] = getattr(other, name)


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

    @classmethod
    def empty(cls, starts: np.ndarray, models: Sequence[int], details: bool = False) -> BlockTable:
        """Nothing counted yet, in blocks that begin with every cache up to date. models: tiers that have one."""

        def zeros() -> np.ndarray:
            return np.zeros(len(starts), np.int64)

        return cls(
            starts,
            tokens=zeros(),
            seconds=np.zeros(len(starts)),
            forwards={tier: zeros() for tier in models},
            counts={tier: {name: zeros() for name in COUNTS} for tier in models},
            estimated=np.zeros(len(starts), bool),
            unseen=zeros(),
            first={tier: zeros() for tier in models},
            # An array of its own for every tier: what each one has cached is booked in place.
            cached={tier: starts - 1 for tier in models},  # noqa: C420
            events=[] if details else None,
        )


class ForwardBookkeeper:
    """Enters the forwards of one route into a table. `lane` arrays index its rows, free of repeats; `pos` are slots.

    overhead: seconds per verification outside the models.
    """

    def __init__(self, table: BlockTable, tiers: Sequence[int], prices: Prices, overhead: float) -> None:
        self.table, self.tiers, self.prices, self.overhead = table, tiers, prices, overhead

    def draft(self, tier: int, lane: np.ndarray, pos: np.ndarray, offer: Offer, off: bool = False) -> None:
        """`offer.length` forwards of a draft model. off: behind a token that is not the recorded text's."""
        table, passes = self.table, offer.length
        used = passes > 0
        lane, pos, passes = lane[used], pos[used], passes[used]
        width = pos - table.cached[tier][lane]
        table.forwards[tier][lane] += passes
        table.seconds[lane] += self.prices(tier, width) + (passes - 1) * self.prices(tier, 1)
        self._first(tier, lane, width)
        # The last token drafted was never fed to its own tier.
        table.cached[tier][lane] = pos + passes - 1
        if table.events is not None:
            rest = (offer.proposer[used], passes, offer.on_path[used], offer.token[used], offer.owner[used])
            table.events.append(Event(tier, lane, pos, width, *rest, off))

    def round(
        self,
        tier: int,
        lane: np.ndarray,
        pos: np.ndarray,
        offer: Offer,
        accepted: np.ndarray,
        refused: np.ndarray,
        emitted: np.ndarray,
        off: bool = False,
    ) -> None:
        """One verification."""
        table = self.table
        width = offer.length + pos - table.cached[tier][lane]
        for name, value in zip(COUNTS, (1, offer.length, accepted, refused, emitted)):
            table.counts[tier][name][lane] += value
        table.forwards[tier][lane] += 1
        table.seconds[lane] += self.prices(tier, width) + self.overhead
        self._first(tier, lane, width)
        valid = pos + accepted
        table.cached[tier][lane] = valid
        for low in self.tiers:
            if low < tier and low in table.cached:
                # What a verifier replaced is no longer the text in the caches below it.
                table.cached[low][lane] = np.minimum(table.cached[low][lane], valid)
        if table.events is not None:
            rest = (offer.proposer, offer.length, offer.on_path, offer.token, offer.owner)
            table.events.append(Event(tier, lane, pos, width, *rest, off, accepted, refused, emitted))

    def _first(self, tier: int, lane: np.ndarray, width: np.ndarray) -> None:
        first = self.table.first[tier]
        first[lane] = np.where(first[lane] == 0, width, first[lane])
