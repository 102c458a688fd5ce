"""A trace set laid out flat for replay: one slot per token that could have been generated, and jump tables over them.

A jump table holds for every slot the next slot at which something happens, so that "how many tokens in a row does this
tier get right from here" is one subtraction, for all positions of all traces at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.errors import unknown_name
from tuning.traces.format import DIVERGENCES, NOTHING, TraceSet
from tuning.traces.ngram_index import NgramIndex

FAR = 1 << 30
NO_TOKEN = -2  # equal to no id of the text, and not NOTHING
_PAST_END = -3  # the "id" of an empty slot


class AcceptanceEstimate(Protocol):
    """What replay asks where the recorded text ends: see `acceptance_model`. divergence: what it compares with tau."""

    divergence: str

    def probabilities(self, traces: TraceSet, proposer: int, verifier: int, tau: float) -> list[np.ndarray]:
        """Per trace, float [N]: how likely the verifier accepts the proposer's token at each position."""


class PositionIndex:
    """Arrays over slots; trace t owns the slots from `first[t]` to `first[t] + max_new_tokens`, the last one empty.

    Args:
        seed: of the draws that stand for acceptances off the recorded path. acceptance: their probabilities (default:
            each pair's mean along its trace).

    Attributes:
        first, end, limit: int [T], slots where a trace starts, where its tokens end, and where `max_new_tokens` would.
        trace: int [S], the trace of a slot. positions: the slots that hold a token, all traces.
        ids, top[tier]: int [S]. on[tier]: bool [S], whether the tier's best id is the text's.
    """

    def __init__(
        self, traces: TraceSet, divergence: str = "js", seed: int = 0, acceptance: AcceptanceEstimate | None = None
    ) -> None:
        if divergence not in DIVERGENCES:
            raise ValueError(unknown_name("recorded divergence", divergence, DIVERGENCES))
        self.divergence_name = divergence
        self.traces = traces
        self.header = traces.header
        self.seed = seed
        self.acceptance = acceptance
        counts = np.array([len(trace) for trace in traces], np.int64)
        spans = np.array([trace.max_new_tokens + 1 for trace in traces], np.int64)
        self.first = np.concatenate([[0], np.cumsum(spans)[:-1]]).astype(np.int64)
        self.end, self.limit = self.first + counts, self.first + spans - 1
        self.prompt = np.array([len(trace.prompt) for trace in traces], np.int64)
        self.size = int(spans.sum())
        self.trace = np.repeat(np.arange(len(traces)), spans)
        self.positions = np.flatnonzero(np.arange(self.size) < self.end[self.trace])
        self.limit_of = self.limit[self.trace]
        # Where a trace ended by EOS, reaching its end means that EOS was emitted.
        self.eos_end = np.where([trace.ended for trace in traces], self.end, -1)[self.trace]
        self.ids = self._flat(lambda trace: trace.ids, _PAST_END)
        tiers = range(len(self.header.tiers))
        self.top = {tier: self._flat(lambda trace: trace.top[tier], NO_TOKEN) for tier in tiers}
        # The target's own text is what it wrote, whatever one wide forward says in half precision.
        self.top[self.header.target] = np.where(self.ids == _PAST_END, NO_TOKEN, self.ids)
        self.entropy = {tier: self._flat(lambda trace: trace.entropy[tier], np.nan) for tier in tiers}
        self.gap = {tier: self._flat(lambda trace: trace.gap[tier], np.nan) for tier in tiers}
        self.sampling = False  # whether `relaxed` compares total variation instead of regret
        self.copy_end: np.ndarray | None = (
            None  # next slot at which a lookup's token is refused although it is the text's
        )
        self._copies: list[dict[int, NgramIndex]] = [{} for _ in traces]
        self._tables: dict[Any, Any] = {}

    def _flat(self, of: Callable[[Any], np.ndarray], fill: float) -> np.ndarray:
        kind = np.float64 if isinstance(fill, float) else np.int64
        flat = np.full(self.size, fill, kind)
        if len(self.traces):
            flat[self.positions] = np.concatenate([of(trace) for trace in self.traces])
        return flat

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, once per key: configs share most tables."""
        if key not in self._tables:
            self._tables[key] = make()
        return self._tables[key]

    def transformed(self, **changes: Any) -> PositionIndex:
        """The same text with other attributes, `top` say: how sampling and drift are estimated (`trace_transforms`)."""
        other = object.__new__(PositionIndex)
        other.__dict__.update(self.__dict__, **changes, _tables={})
        return other

    # --- along the recorded text

    def on(self, tier: int) -> np.ndarray:
        """bool [S]: the tier's best id is the text's."""
        return self.cached(("on", tier), lambda: self.top[tier] == self.ids)

    def miss(self, tier: int) -> np.ndarray:
        """Next slot at which the tier's best id is not the text's (at the latest, the end of the text)."""
        return self.cached(("miss", tier), lambda: next_true(~self.on(tier)))

    def over(self, tier: int, stop: float) -> np.ndarray:
        """Next slot at which the tier's entropy is above `stop` nats."""
        return self.cached(("over", tier, stop), lambda: next_true(self.entropy[tier] > stop))

    def draft_limit(self, tier: int, stop: float | None) -> np.ndarray:
        """Most tokens that a draft model proposes from each slot: it ends after EOS, and by `stop`."""
        return self.cached(("draft", tier, stop), lambda: self._draft_limit(tier, stop))

    def _draft_limit(self, tier: int, stop: float | None) -> np.ndarray:
        here = np.arange(self.size)
        leaves = self.miss(tier)
        limit = np.full(self.size, FAR)
        limit = np.where(leaves == self.eos_end, leaves - here, limit)
        limit = np.where(self.is_eos(self.top[tier][leaves]), leaves - here + 1, limit)
        return limit if stop is None else np.minimum(limit, self.over(tier, stop) - here + 1)

    def is_eos(self, ids: np.ndarray) -> np.ndarray:
        return np.isin(ids, self.header.eos) if self.header.eos else np.zeros(len(ids), bool)

    def refusal(self, tier: int, proposer: int, rule: str, tau: float) -> np.ndarray:
        """Next slot at which a verifying tier refuses the text's own id, if `proposer` proposes it."""
        if tau <= 0 or rule not in ("fuzzy", "relaxed"):
            return self.miss(tier)
        key = ("refusal", tier, proposer, rule, tau)
        return self.cached(key, lambda: next_true(~(self.on(tier) | (self._distance(tier, proposer, rule) <= tau))))

    def _distance(self, tier: int, proposer: int, rule: str) -> np.ndarray:
        if rule == "relaxed" and not self.sampling:
            return self.gap[tier]
        if rule == "relaxed":
            return self.divergence("tv", proposer, tier)
        # Of a lookup's point mass only the first proposed id was compared.
        known = self.header.tiers[proposer].lookup is None or self.top[proposer] == self.ids
        return np.where(known, self.divergence(self.divergence_name, proposer, tier), np.inf)

    def loose(
        self,
        tier: int,
        slots: np.ndarray,
        token: np.ndarray,
        owner: np.ndarray,
        proposer: np.ndarray,
        rule: str,
        tau: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether tau lets `token`, the best id of `owner` but not the text's, pass at `slots`. -> (passes, known)"""
        if rule == "relaxed" and not self.sampling:
            distance = self.regret(tier, slots, token, owner)
        else:
            distance = np.full(len(slots), np.nan)
            for low in range(tier):
                # Distributions were compared, so they count whichever token came; a lookup's is its first id.
                mine = (proposer == low) & ((self.header.tiers[low].lookup is None) | (token == self.top[low][slots]))
                distance[mine] = self.divergence(self._compared(rule), low, tier)[slots[mine]]
        return distance <= tau, ~np.isnan(distance)

    def regret(self, tier: int, slots: np.ndarray, token: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """How much less likely than the tier's best `token`, an id of `owner`, is at `slots`, nats; NaN: unknown."""
        regret = np.full(len(slots), np.nan)
        for low in range(tier):
            mine = np.flatnonzero((owner == low) & (token == self.top[low][slots]))
            regret[mine] = self.divergence("logit_gap", low, tier)[slots[mine]]
        rest = np.flatnonzero(np.isnan(regret))
        keys, values = self.cached("departures", self._departures)
        if len(rest) and len(keys):
            wanted = (slots[rest] << 32) + token[rest]
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            regret[rest] = np.where(keys[place] == wanted, values[place, tier], np.nan)
        return regret

    def _departures(self) -> tuple[np.ndarray, np.ndarray]:
        """(slot << 32 + id, sorted; regret under each tier): ids with which copies leave the text."""
        keys = np.concatenate(
            [
                (first + trace.departures[:, 1].astype(np.int64) << 32) + trace.departures[:, 2]
                for first, trace in zip(self.first, self.traces)
            ]
        )
        order = np.argsort(keys)
        return keys[order], np.concatenate([trace.departure_regret for trace in self.traces])[order]

    def logprob_of_text(self) -> np.ndarray:
        """float [S]: log-prob of the text's own id under the target, nats."""
        return self._flat(lambda trace: trace.logprob[-1], np.nan)

    def _compared(self, rule: str) -> str:
        """The recorded divergence that a rule compares with tau, for the proposer's own best id."""
        if rule == "fuzzy":
            return self.divergence_name
        return "tv" if self.sampling else "logit_gap"

    def divergence(self, name: str, proposer: int, verifier: int) -> np.ndarray:
        """float [S]; NaN where it was not recorded."""
        row, column = DIVERGENCES.index(name), self.traces.pair(proposer, verifier)
        return self.cached(
            ("divergence", name, proposer, verifier), lambda: self._flat(lambda t: t.divergence[row, column], np.nan)
        )

    # --- lookups

    def copy(self, tier: int, slots: np.ndarray, verified: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What a lookup proposes at `slots` in blocks that began at `verified`.

        -> (ids available, leading ones that are the text's, the first that is not)
        """
        source, available, match, token = self.cached(("copy", tier), lambda: self._copy_tables(tier))
        available, match, token = available[slots], match[slots], token[slots]
        # Within a block the drafter has indexed only what was verified: a later source is not known yet.
        for lane in np.flatnonzero(source[slots] >= verified):
            available[lane], match[lane], token[lane] = self.cached(
                ("copy", tier, slots[lane], verified[lane]),
                lambda: self._copied(tier, int(slots[lane]), int(verified[lane])),
            )
        if self.copy_end is not None:
            cut = self.copy_end[slots] - slots
            match, token = np.minimum(match, cut), np.where(cut < match, NO_TOKEN, token)
        return available, match, token

    def _copy_tables(self, tier: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        source = np.full(self.size, -FAR)
        found = np.zeros((self.size, 3), np.int64)
        found[:, 2] = NO_TOKEN
        recorded = self._flat(lambda trace: trace.source[tier], NOTHING)
        for slot in self.positions[recorded[self.positions] != NOTHING]:
            trace = self.trace[slot]
            found[slot] = self._described(tier, int(slot), int(recorded[slot]))
            source[slot] = (
                recorded[slot] - self.prompt[trace] + self.first[trace]
            )  # as a slot, below `first` in a prompt
        return source, *found.T.copy()

    def _copied(self, tier: int, slot: int, verified: int) -> tuple[int, int, int]:
        first = int(self.first[self.trace[slot]])
        return self._described(tier, slot, self._copies_of(tier, slot).source(slot - first, verified - first))

    def _described(self, tier: int, slot: int, source: int) -> tuple[int, int, int]:
        if source == NOTHING:
            return 0, 0, NO_TOKEN
        position = slot - int(self.first[self.trace[slot]])
        copies = self._copies_of(tier, slot)
        match, token = copies.match(position, source)
        return copies.available(position, source), match, token if token >= 0 else NO_TOKEN

    def _copies_of(self, tier: int, slot: int) -> NgramIndex:
        index = int(self.trace[slot])
        if tier not in self._copies[index]:
            trace, info = self.traces[index], self.header.tiers[tier]
            self._copies[index][tier] = NgramIndex(
                [*trace.prompt.tolist(), *trace.ids.tolist()], len(trace.prompt), *info.lookup, info.usable_ids
            )
        return self._copies[index][tier]

    # --- limits of tiers

    def room(self, tier: int, slots: np.ndarray) -> np.ndarray:
        """Tokens behind a prefix that the tier can still read; negative where it cannot read the prefix."""
        limit = self.header.tiers[tier].max_context
        lost = self.cached(("lost", tier), lambda: self._lost(tier))
        if limit is None:
            room = np.full(len(slots), FAR)
        else:
            trace = self.trace[slots]
            room = limit - self.prompt[trace] - (slots - self.first[trace])
        return room if lost is None else np.where(lost[slots], -1, room)

    def _lost(self, tier: int) -> np.ndarray | None:
        """bool [S], slots of a model tier without a record, because it cannot read the text there; None for none."""
        if self.header.tiers[tier].lookup is not None or tier == self.header.target:
            return None
        lost = self.top[tier] == NOTHING
        return lost if lost.any() else None

    # --- off the recorded text

    def off_refusal(self, proposer: int, verifier: int, tau: float, rule: str) -> np.ndarray:
        """Next slot at which `verifier` refuses `proposer`'s token, drawn for prefixes that were not recorded."""
        tau = tau if rule in ("fuzzy", "relaxed") else 0.0
        key = ("off", proposer, verifier, tau, rule if tau else "")
        return self.cached(
            key, lambda: next_true(self._uniform(proposer, verifier) >= self._off_rate(proposer, verifier, tau, rule))
        )

    def off_hit(self, lookup: int) -> np.ndarray:
        """bool [S]: whether a lookup finds something, drawn for prefixes that were not recorded."""

        def drawn() -> np.ndarray:
            found = (self.top[lookup] != NOTHING) & (self.top[lookup] != NO_TOKEN)
            return self._uniform(lookup, lookup) < self._spread(found.astype(float))

        return self.cached(("hit", lookup), drawn)

    def _off_rate(self, proposer: int, verifier: int, tau: float, rule: str) -> np.ndarray:
        """float [S]: probability of acceptance off the recorded text."""
        if self.acceptance is not None:
            flat = np.full(self.size, np.nan)
            flat[self.positions] = np.concatenate(self.acceptance.probabilities(self.traces, proposer, verifier, tau))
            if not np.isnan(flat).all():
                return np.where(np.isnan(flat), self._spread(flat), flat)
        if self.header.tiers[proposer].lookup is not None:
            return self._spread(self._copy_outcomes(proposer, verifier))
        return self._spread(self.agreement(proposer, verifier, rule, tau))

    def agreement(self, proposer: int, verifier: int, rule: str, tau: float) -> np.ndarray:
        """float [S]: 1 where the verifier accepts the proposer's best id, 0 where not, NaN where one has none."""
        accepted = self.top[proposer] == self.top[verifier]
        if tau > 0 and rule in ("fuzzy", "relaxed"):
            accepted = accepted | (self.divergence(self._compared(rule), proposer, verifier) <= tau)
        return np.where((self.top[proposer] >= 0) & (self.top[verifier] >= 0), accepted, np.nan)

    def _copy_outcomes(self, lookup: int, verifier: int) -> np.ndarray:
        """1 accepted, 0 refused, NaN not tested, if the verifier worked through the text on this lookup alone."""
        outcome = np.full(self.size, np.nan)
        _, available, match, _ = self.cached(("copy", lookup), lambda: self._copy_tables(lookup))
        kept = np.minimum(np.minimum(match, available), self.miss(verifier) - np.arange(self.size))
        for first, end in zip(self.first, self.end):
            slot = int(first)
            while slot < end:
                stop = slot + int(kept[slot])
                outcome[slot:stop] = 1.0
                if available[slot] > kept[slot] and stop < end:
                    outcome[stop] = 0.0
                slot = stop + 1
        return outcome

    def _spread(self, outcome: np.ndarray) -> np.ndarray:
        """Each trace's mean of what is known, over all its slots; four observations draw it towards the set's mean."""
        known = ~np.isnan(outcome)
        total = np.bincount(self.trace[known], outcome[known], len(self.traces))
        count = np.bincount(self.trace[known], minlength=len(self.traces))
        overall = total.sum() / max(1, count.sum())
        return ((total + 4 * overall) / (count + 4))[self.trace]

    def _uniform(self, low: int, high: int) -> np.ndarray:
        """Uniforms that depend on the trace's own text alone, so that a trace replays alike in any set."""
        draws = [
            np.random.default_rng([self.seed, low, high, zlib.crc32(trace.ids.tobytes())]).random(
                trace.max_new_tokens + 1
            )
            for trace in self.traces
        ]
        return np.concatenate(draws)


def compared_below_target(method: Method) -> str | None:
    """The recorded divergence that a method's lower stages compare with tau in greedy decoding; None where they have none."""
    return {"relaxed": "logit_gap", "fuzzy": method.divergence}.get(method.lower)


def next_true(mask: np.ndarray) -> np.ndarray:
    """For every index the next one, itself included, at which mask holds; FAR if none does."""
    index = np.where(mask, np.arange(len(mask)), FAR)
    return np.minimum.accumulate(index[::-1])[::-1]
