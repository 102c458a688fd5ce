"""What decoding costs here and now, learned from every block: forwards, the work between them, caches left behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import PyramidConfig
from ..stats import BlockStats, Forward
from ..throughput import CostModel
from .controller import RequestInfo
from .pool import Pool


class CostTracker:
    """Prices in seconds, from a cost table that every block of every request corrects.

    Attributes:
        costs: forward times, a private copy.
        per_verification, per_draft: seconds outside the models for a verification and for a drafting forward.
    """

    def __init__(self, pool: Pool) -> None:
        self.costs = pool.costs.copy()
        self.measured = pool.measured
        self.target = pool.n_tiers - 1
        self.per_verification = 0.0
        self.per_draft = 0.0
        self.caches: dict[int, _Cache] = {}
        self._prefill = 1.0  # seconds of a long forward over what the table extrapolates
        self._prefill_looks = self._rests = 0
        self._worst_cases: dict[PyramidConfig, _BlockForwards] = {}
        self._begun = self.blocks = 0  # requests begun, blocks observed
        self._prefills: list[Forward] = []  # not learned from yet: what they cost is known relative to short forwards

    def begin(self, request: RequestInfo) -> RequestCosts:
        """Prices for one more request."""
        self._begun += 1
        self.caches = {
            tier: replace(cache, reusable=min(cache.reusable, request.reused)) for tier, cache in self.caches.items()
        }
        return RequestCosts(self, request, self._begun)

    def observe(self, block: BlockStats) -> None:
        self.blocks += 1
        for forward in block.forwards:
            if not forward.is_prefill:
                self.costs.observe(forward.tier, forward.width, forward.seconds)
            elif forward.tier in self.costs.table:
                self._prefills.append(forward)
        if self.calibrated:
            for forward in self._prefills:
                self._observe_prefill(forward)
            self._prefills.clear()
        self._observe_rest(block)

    def _observe_prefill(self, forward: Forward) -> None:
        ratio = forward.seconds / (self._prefill * self.costs.seconds(forward.tier, forward.width))
        if forward.tier == self.target or self.measured or self.costs.observed(forward.tier):
            self._prefill_looks += 1
            self._prefill *= ratio ** max(0.1, 1 / self._prefill_looks)
        else:
            self.costs.rescale(forward.tier, ratio)  # better than a guess from bytes

    def _observe_rest(self, block: BlockStats) -> None:
        """Split what is left of the block's time between verifications and drafting forwards (normalised least squares)."""
        verifications = len(block.verifications)
        drafts = max(0, len(block.forwards) - verifications)
        if not verifications:
            return
        expected = verifications * self.per_verification + drafts * self.per_draft
        outside = max(0.0, block.seconds - block.model_seconds)
        # Believed up to twice what was expected, once something is: garbage collection is no overhead of decoding.
        outside = min(outside, 2 * expected) if self._rests >= 2 else outside
        self._rests += 1
        step = (0.5 if self._rests < 10 else 0.2) * (outside - expected) / (verifications**2 + drafts**2)
        self.per_verification = max(0.0, self.per_verification + step * verifications)
        self.per_draft = max(0.0, self.per_draft + step * drafts)

    @property
    def calibrated(self) -> bool:
        """Whether target-only decoding has a price: a measured one, or two looks from this run, since first calls are slow."""
        return self.measured or self.costs.observed(self.target) >= 2

    @property
    def target_only(self) -> float:
        """Seconds per token without any draft."""
        return self.costs.seconds(self.target, 1) + self.per_verification

    def target_only_seconds(self, block: BlockStats) -> float:
        """Seconds target-only decoding would have taken for the block's tokens, its prefill included."""
        if len(block.config.route) == 1:
            return block.seconds
        prefill = sum(
            f.seconds - self.costs.seconds(f.tier, f.needed)
            for f in block.forwards
            if f.tier == self.target and f.is_prefill
        )
        return block.tokens * self.target_only + prefill

    def steady(self, block: BlockStats) -> float:
        """The block's seconds with prefill and catching up replaced by the forwards that were asked for."""
        extra = sum(f.seconds - self.costs.seconds(f.tier, f.needed) for f in block.forwards if f.is_prefill)
        return max(block.seconds - extra, 1e-9)

    def catching_up(self, tier: int, lag: int) -> float:
        """Seconds for the cache of `tier` to read `lag` tokens, beyond a forward over one."""
        return max(0.0, self._prefill * self.costs.seconds(tier, lag) - self.costs.seconds(tier, 1))

    def work(self, config: PyramidConfig) -> _BlockForwards:
        """The forwards of one block in which every tier refuses everything."""
        work = self._worst_cases.get(config)
        if work is None:
            work = self._worst_cases[config] = _all_rejected(config, len(config.route) - 1, self.costs.table)
        return work

    def state_dict(self) -> dict[str, Any]:
        return {
            "costs": self.costs.to_dict(),
            "per_verification": self.per_verification,
            "per_draft": self.per_draft,
            "prefill": self._prefill,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The table's scale is measured anew (`observed` starts at 0): the machine may be another one by now.
        self.costs = CostModel({int(tier): row for tier, row in state["costs"].items()})
        self.per_verification, self.per_draft = float(state["per_verification"]), float(state["per_draft"])
        self._prefill = float(state["prefill"])


class RequestCosts:
    """What one request has to add to the shared prices: how far the caches are behind its text.

    Tiers have one cache each, whatever the number of requests: what another request has written there since is good for
    this one up to their common prefix, of which `RequestInfo.reused` of the later of the two tells.

    Attributes:
        context: prompt and output so far, tokens.
    """

    def __init__(self, shared: CostTracker, request: RequestInfo, number: int) -> None:
        self.shared = shared
        self.context = request.prompt_length
        self._reused, self._number = request.reused, number
        self._catch_ups: dict[int, float] = {}  # per tier, as of `_catch_ups_at` blocks of all requests
        self._catch_ups_at = shared.blocks

    def observe(self, block: BlockStats) -> None:
        self.context = block.context + block.tokens
        for forward in block.forwards:
            self.shared.caches[forward.tier] = _Cache(self, forward.context + forward.width)
        self.shared.observe(block)

    def _cached(self, tier: int) -> int:
        """Tokens of this request's text in the cache of `tier`."""
        cache = self.shared.caches.get(tier)
        if cache is None or cache.owner is self:
            return 0 if cache is None else cache.tokens
        later = max(self, cache.owner, key=lambda request: request._number)
        return int(min(cache.tokens, cache.reusable, later._reused))

    def catch_up(self, tiers: Iterable[int]) -> float:
        """Seconds for the caches of `tiers` to catch up with the text."""
        if self._catch_ups_at != self.shared.blocks:
            self._catch_ups.clear()
            self._catch_ups_at = self.shared.blocks
        total = 0.0
        for tier in tiers:
            price = self._catch_ups.get(tier)
            if price is None:
                lag = self.context - self._cached(tier)
                price = 0.0
                if tier != self.shared.target and lag > 2:  # a lag of one token, and one more in hand, is normal
                    price = self.shared.catching_up(tier, lag)
                self._catch_ups[tier] = price
            total += price
        return total

    def worst_case(self, config: PyramidConfig) -> float:
        """Seconds of one block in which every tier refuses everything, so that it emits one token; entry included."""
        work, shared = self.shared.work(config), self.shared
        total = (
            self.catch_up(work.tiers) + work.verifications * shared.per_verification + work.drafts * shared.per_draft
        )
        for (tier, width), count in work.forwards.items():
            total += count * shared.costs.seconds(tier, width)
        return total


@dataclass(frozen=True)
class _Cache:
    """Whose text a tier's cache holds, how many tokens of it, and how many of these every later request can reuse."""

    owner: RequestCosts
    tokens: int
    reusable: float = math.inf


@dataclass
class _BlockForwards:
    """The forwards of a block, by (tier, width)."""

    tiers: tuple[int, ...]
    forwards: Counter[tuple[int, int]] = field(default_factory=Counter)
    verifications: int = 0
    drafts: int = 0


def _all_rejected(config: PyramidConfig, depth: int, models: Container[int]) -> _BlockForwards:
    """One round at `route[depth]`, everything refused: a tier that is asked for n tokens needs n rounds to emit them."""
    work = _BlockForwards(config.tiers[:-1], verifications=1)
    if depth == 0:
        work.forwards[config.tiers[0], 1] = 1
        return work
    tier = config.verifiers[depth - 1]
    length, below = config.stage(tier).length, config.route[depth - 1]
    work.forwards[tier, length + 1] = 1
    if depth > 1:
        inner = _all_rejected(config, depth - 1, models)
        for forward, count in inner.forwards.items():
            work.forwards[forward] += length * count
        work.verifications += length * inner.verifications
        work.drafts = length * inner.drafts
    else:
        drafting = [t for t in (below if isinstance(below, tuple) else (below,)) if t in models]
        if drafting:  # of a fall-through bottom, the dearest
            work.forwards[drafting[-1], 1] += length
            work.drafts = length
    return work
