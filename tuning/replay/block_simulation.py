"""The recursion of decoding, over recorded positions instead of models, for every block of a trace set at once.

`decoding.tiers` asks models; this asks the jump tables of `PositionIndex`. What it mirrors, line by line: rounds that
overshoot, `cap` as the only clip, EOS, early stops, abstaining lookups, tiers that leave the route at their limits, and
how much of its text each cache still holds (that decides the width of a forward).

Along the recorded text everything is exact. A mid tier that prefers another token than the target wrote leaves the text
within its block; what it and the tiers below do from there until the target corrects it is drawn from acceptance rates
(`PositionIndex.off_refusal`), and the block is marked `estimated`. Tokens and target passes never depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from adaptive_pyramid.config import PyramidConfig, Route, StageConfig
from adaptive_pyramid.decoding.method import Method
from tuning.replay.block_table import BlockTable, ForwardBookkeeper, Offer, Prices
from tuning.replay.position_index import FAR, PositionIndex
from tuning.traces.format import Header


def block_table(
    flat: PositionIndex,
    config: PyramidConfig,
    method: Method,
    prices: Prices,
    overhead: float = 0.0,
    details: bool = False,
    starts: np.ndarray | None = None,
) -> BlockTable:
    """Every block that `config` can run on these traces.

    Args:
        overhead: seconds per verification outside the models. details: keep the events of every block.
        starts: of these blocks alone (default: one block from every token).

    Raises:
        ValueError: a config for another number of tiers, or a lookup above the bottom of its route.
    """
    _check(config, flat.header)
    starts = flat.positions if starts is None else starts
    table = BlockTable.empty(starts, [tier for tier in config.tiers if tier in flat.header.models], details)
    for route, lanes in _routes(flat, config, starts):
        own = config.with_route(route)
        _Blocks(flat, own, method, table, ForwardBookkeeper(table, own.tiers, prices, overhead)).run(lanes)
    return table


def block_tokens(flat: PositionIndex, config: PyramidConfig, method: Method) -> np.ndarray:
    """int [positions]: tokens of the block that starts at each position; nothing else, so in a fraction of the time.

    They depend on nothing that happens off the recorded text.
    """
    _check(config, flat.header)
    table = BlockTable.empty(flat.positions, [tier for tier in config.tiers if tier in flat.header.models])
    for route, lanes in _routes(flat, config, flat.positions):
        _Blocks(flat, config.with_route(route), method, table, None).run(lanes)
    return table.tokens


class _Blocks:
    """One route. `lane` arrays index rows of the table and are free of repeats; `pos` are slots.

    books: None = nothing is counted, and nothing is followed off the recorded text.
    """

    def __init__(
        self,
        flat: PositionIndex,
        config: PyramidConfig,
        method: Method,
        table: BlockTable,
        books: ForwardBookkeeper | None,
    ) -> None:
        self.flat, self.config, self.table, self.books = flat, config, table, books
        self.method = method
        self.route = config.route
        self.target = config.target

    def run(self, lanes: np.ndarray) -> None:
        """Fill the rows `lanes` of the table."""
        if compares_copies(self.config, self.method, self.flat.header):
            self.table.estimated[lanes] = True
        pos = self.table.starts[lanes]
        emitted, _ = self._round(len(self.route) - 1, lanes, pos, self.flat.limit_of[pos] - pos)
        self.table.tokens[lanes] = emitted.length

    # --- the recursion, on the recorded text

    def _round(self, depth: int, lane: np.ndarray, pos: np.ndarray, cap: np.ndarray) -> tuple[Offer, np.ndarray]:
        """-> (what the tier emits, whether it ended with EOS)"""
        if depth == 0:
            return self._verify(depth, lane, pos, Offer.none(len(lane)))
        stage = self._stage(depth)
        room = np.maximum(np.minimum(cap - 1, self.flat.room(self.route[depth], pos)), 0)
        offer = self._propose(depth - 1, lane, pos, np.minimum(stage.length, room), room, stage.stop)
        return self._verify(depth, lane, pos, offer)

    def _propose(
        self, depth: int, lane: np.ndarray, pos: np.ndarray, n: np.ndarray, cap: np.ndarray, stop: float | None
    ) -> Offer:
        if depth > 0:
            return self._rounds(depth, lane, pos, n, cap, stop)
        tiers = _proposers(self.route)
        if len(tiers) == 1:
            return self._bottom(tiers[0], lane, pos, n, stop)
        offer, open_ = Offer.none(len(lane)), np.arange(len(lane))
        for tier in tiers:
            found = self._bottom(tier, lane[open_], pos[open_], n[open_], stop)
            offer.put(open_, found)
            open_ = open_[found.length == 0]
        return offer

    def _bottom(self, tier: int, lane: np.ndarray, pos: np.ndarray, n: np.ndarray, stop: float | None) -> Offer:
        flat = self.flat
        if tier not in self.table.forwards:
            available, match, token = flat.copy(tier, pos, self.table.starts[lane])
            length = np.minimum(n, available)
            return Offer(
                length, np.minimum(match, length), token, np.full(len(lane), tier), np.where(length > 0, tier, -1)
            )
        run = flat.miss(tier)[pos] - pos
        length = np.minimum(np.minimum(n, flat.draft_limit(tier, stop)[pos]), np.maximum(flat.room(tier, pos) + 1, 0))
        behind = np.maximum(length - run - 1, 0)
        self.table.unseen[lane] += behind
        if stop is not None:
            self.table.estimated[lane] |= behind > 0
        offer = Offer(
            length,
            np.minimum(run, length),
            flat.top[tier][pos + run],
            np.full(len(lane), tier),
            np.where(length > 0, tier, -1),
        )
        if self.books is not None:
            self.books.draft(tier, lane, pos, offer)
        return offer

    def _rounds(
        self, depth: int, lane: np.ndarray, pos: np.ndarray, n: np.ndarray, cap: np.ndarray, stop: float | None
    ) -> Offer:
        """Rounds of a mid tier until n tokens are there, on the text and then off it."""
        flat, tier = self.flat, self.route[depth]
        total = Offer.none(len(lane))
        live = np.flatnonzero((n > 0) & (flat.room(tier, pos) >= 0))
        total.proposer[live] = tier
        while len(live):
            here = pos[live] + total.length[live]
            out, ended = self._round(depth, lane[live], here, cap[live] - total.length[live])
            total.length[live] += out.length
            total.on_path[live] += out.on_path
            total.token[live], total.owner[live] = out.token, out.owner
            done = ended | (total.length[live] >= n[live])
            if stop is not None:
                done |= flat.over(tier, stop)[here] < here + out.length
            left = out.length > out.on_path
            off = live[left & ~done]
            if len(off) and self.books is not None:
                self.table.estimated[lane[off]] = True
                had = total.length[off]
                total.length[off] += self._off_rounds(
                    depth, lane[off], pos[off] + had, n[off] - had, cap[off] - had, stop
                )
            live = live[~(left | done)]
            live = live[flat.room(tier, pos[live] + total.length[live]) >= 0]
        return total

    def _verify(self, depth: int, lane: np.ndarray, pos: np.ndarray, offer: Offer) -> tuple[Offer, np.ndarray]:
        flat, tier = self.flat, self.route[depth]
        rule, tau = self._rule(depth)
        refused_at = self._by_proposer(offer.proposer, depth, pos, lambda low: flat.refusal(tier, low, rule, tau))
        kept = np.minimum(refused_at - pos, offer.on_path)
        at = pos + kept
        ended = at == flat.eos_end[pos]
        own = flat.top[tier][at]
        own_on = flat.on(tier)[at]
        # All that is the text's was accepted, and a token stands behind it that is not: does it pass too?
        tested = (kept == offer.on_path) & (offer.length > kept) & ~ended
        passes = tested & (offer.token == own)
        if tau > 0 and tested.any():
            open_ = np.flatnonzero(tested & ~passes)
            passes[open_], known = flat.loose(
                tier, at[open_], offer.token[open_], offer.owner[open_], offer.proposer[open_], rule, tau
            )
            self.table.estimated[lane[open_]] |= ~known
        ends_off = passes & flat.is_eos(offer.token)
        accepted = kept + passes
        behind = np.flatnonzero(passes & ~ends_off & (offer.length > accepted))
        refused = (accepted < offer.length) & ~ended & ~ends_off
        if len(behind):
            self.table.estimated[lane[behind]] = True
            next_ = pos[behind] + accepted[behind]
            more = (
                self._by_proposer(
                    offer.proposer[behind], depth, next_, lambda low: flat.off_refusal(low, tier, tau, rule)
                )
                - next_
            )
            accepted[behind] += np.minimum(more, offer.length[behind] - accepted[behind])
            refused[behind] = accepted[behind] < offer.length[behind]
        emitted = accepted + ~(ended | ends_off)
        if self.books is not None:
            self.books.round(tier, lane, pos, offer, accepted, refused, emitted)
        out = Offer(
            emitted,
            kept + (own_on & ~passes & ~ended),
            np.where(passes, offer.token, own),
            np.where(passes, offer.owner, tier),
            np.full(len(lane), tier),
        )
        wrote_eos = np.where(
            out.on_path < emitted, flat.is_eos(out.token) & (out.on_path + 1 == emitted), at + 1 == flat.eos_end[pos]
        )
        return out, ended | wrote_eos

    # --- off the recorded text: acceptances are drawn, nothing ends early but by cap and `stop`

    def _off_rounds(
        self, depth: int, lane: np.ndarray, pos: np.ndarray, n: np.ndarray, cap: np.ndarray, stop: float | None
    ) -> np.ndarray:
        """-> how many tokens the tier at `depth` proposes"""
        flat, tier, stage = self.flat, self.route[depth], self._stage(depth)
        rule, tau = self._rule(depth)
        total = np.zeros(len(lane), np.int64)
        live = np.arange(len(lane))
        while len(live):
            here = pos[live] + total[live]
            room = np.maximum(cap[live] - total[live] - 1, 0)
            offer = self._off_propose(depth - 1, lane[live], here, np.minimum(stage.length, room), room, stage.stop)
            refused_at = self._by_proposer(
                offer.proposer, depth, here, lambda low: flat.off_refusal(low, tier, tau, rule)
            )
            accepted = np.minimum(refused_at - here, offer.length)
            self.books.round(tier, lane[live], here, offer, accepted, accepted < offer.length, accepted + 1, off=True)
            total[live] += accepted + 1
            done = total[live] >= n[live]
            if stop is not None:
                done |= flat.over(tier, stop)[here] <= here + accepted
            live = live[~done]
        return total

    def _off_propose(
        self, depth: int, lane: np.ndarray, pos: np.ndarray, n: np.ndarray, cap: np.ndarray, stop: float | None
    ) -> Offer:
        offer = Offer.none(len(lane))
        if depth > 0:
            open_ = np.flatnonzero(n > 0)
            offer.length[open_] = self._off_rounds(depth, lane[open_], pos[open_], n[open_], cap[open_], stop)
            offer.proposer[open_] = self.route[depth]
            return offer
        open_ = np.flatnonzero(n > 0)
        for tier in _proposers(self.route):
            here, length = pos[open_], n[open_]
            if tier not in self.table.forwards:
                length = np.where(self.flat.off_hit(tier)[here], length, 0)
            elif stop is not None:
                length = np.minimum(length, self.flat.over(tier, stop)[here] - here + 1)
            offer.length[open_] = length
            offer.proposer[open_] = np.where(length > 0, tier, -1)
            if tier in self.table.forwards:
                drafted = Offer.none(len(open_))
                drafted.length, drafted.proposer = length, offer.proposer[open_]
                self.books.draft(tier, lane[open_], here, drafted, off=True)
            open_ = open_[length == 0]
        return offer

    # --- small things

    def _stage(self, depth: int) -> StageConfig:
        return self.config.stage(self.route[depth])

    def _rule(self, depth: int) -> tuple[str, float]:
        """(rule, tau); the target's own tau is in the text already (`trace_transforms`), never tested here."""
        tier = self.route[depth]
        if depth == 0 or tier == self.target:
            return "exact", 0.0
        return self.method.rule(False), (
            self._stage(depth).tau if self.method.rule(False) in ("fuzzy", "relaxed") else 0.0
        )

    def _by_proposer(
        self, proposer: np.ndarray, depth: int, slots: np.ndarray, table_of: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        """table_of(proposing tier)[slots], lane by lane."""
        lows = [] if depth == 0 else [self.route[depth - 1]] if depth > 1 else list(_proposers(self.route))
        if len(lows) == 1:
            return table_of(lows[0])[slots]
        found = np.full(len(slots), FAR)
        for low in lows:
            mine = proposer == low
            found[mine] = table_of(low)[slots[mine]]
        return found


def compares_copies(config: PyramidConfig, method: Method, header: Header) -> bool:
    """Whether a fuzzy stage below the target stands above a lookup.

    Distances to a lookup's point masses were recorded for the first id of each proposal alone.
    """
    route = config.route
    return (
        method.lower == "fuzzy"
        and len(route) > 2
        and config.stage(route[1]).tau > 0
        and not set(_proposers(route)) <= set(header.models)
    )


def _proposers(route: Route) -> tuple[int, ...]:
    return route[0] if isinstance(route[0], tuple) else (route[0],)


def _check(config: PyramidConfig, header: Header) -> None:
    if config.n_tiers != len(header.tiers):
        raise ValueError(f"config is for {config.n_tiers} tiers, these traces have {len(header.tiers)}")
    for tier in config.route[1:] if len(config.route) > 1 else config.route:
        if tier not in header.models:
            raise ValueError(
                f"tier {tier} ({header.tiers[tier].name}) has no model, so it can only stand at the bottom of a route"
            )


def _routes(flat: PositionIndex, config: PyramidConfig, starts: np.ndarray) -> Iterator[tuple[Route, np.ndarray]]:
    """The route without the tiers that cannot read the text any more, and the rows it holds for."""
    below = [tier for tier in config.tiers[:-1] if tier in flat.header.models]
    lost = np.array([flat.room(tier, starts) < 0 for tier in below], bool).reshape(len(below), len(starts))
    if not lost.any():
        yield config.route, np.arange(len(starts))
        return
    kinds, kind = np.unique(lost, axis=1, return_inverse=True)
    for column in range(kinds.shape[1]):
        gone = {tier for tier, is_lost in zip(below, kinds[:, column]) if is_lost}
        bottom = tuple(tier for tier in _proposers(config.route) if tier not in gone)
        rest = tuple(tier for tier in config.route[1:] if tier not in gone)
        yield ((bottom, *rest) if len(bottom) > 1 else (*bottom, *rest)), np.flatnonzero(kind.ravel() == column)
