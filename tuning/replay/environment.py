"""One recorded trace as something to control: blocks are run one by one, under any config, in modelled time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import RequestInfo
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.stats import SHADOW_LENGTH, BlockStats, Forward, Shadow, Verification
from tuning.replay.block_table import BlockTable, Event, Prices
from tuning.replay.position_index import PositionIndex
from tuning.traces.format import TraceSet


class Blocks(Protocol):
    """What an environment asks of `engine.Replay`, which makes it; the engine's docstrings say what each is."""

    traces: TraceSet
    flat: PositionIndex
    method: Method
    prices: Prices
    overhead: float
    prefill: bool
    do_sample: bool

    def details(self, config: PyramidConfig) -> tuple[BlockTable, np.ndarray]: ...


@dataclass
class ReplayEnvironment:
    """A decoding of one trace, to be stepped like `decoding.Decoding`, without models.

        environment = Replay(traces, costs).environment(3)
        control = controller.begin(environment.info)
        while not environment.finished:
            control.observe(environment.step(control.choose().config))

    The statistics are those that the decoder would give, as far as they were recorded: values at positions behind a
    token that is not the text's, where the decoder knows entropies and distances, are NaN. Caches are followed from
    block to block: a tier that re-enters the route pays for catching up, and each tier's first use pays the prompt.

    Args:
        replay: a `Replay`; its tables of blocks are shared by all environments made from it. trace: index of the trace.

    Attributes:
        position: new tokens so far. seconds: modelled time so far.
    """

    replay: Blocks
    trace: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.trace < len(self.replay.traces):
            raise ValueError(f"trace must be in [0, {len(self.replay.traces)}), got {self.trace}")
        flat = self.replay.flat
        self._recorded = self.replay.traces[self.trace]
        self._first = int(flat.first[self.trace])
        self._prompt = len(self._recorded.prompt)
        self.position = 0
        self.seconds = 0.0
        # The slot up to which each cache holds the text: nothing yet, not even the prompt.
        self._cached = dict.fromkeys(flat.header.models, self._first - self._prompt)

    @property
    def info(self) -> RequestInfo:
        """What a controller is told before the first block."""
        replay = self.replay
        return RequestInfo(self._prompt, self._recorded.max_new_tokens, replay.do_sample, replay.method.lossless)

    @property
    def finished(self) -> bool:
        return self.position >= len(self._recorded)

    @property
    def ids(self) -> list[int]:
        """The tokens so far."""
        return self._recorded.ids[: self.position].tolist()

    def step(self, config: PyramidConfig) -> BlockStats:
        """Run one block.

        Raises:
            RuntimeError: the trace is at its end. ValueError: a config that these tiers cannot run.
        """
        if self.finished:
            raise RuntimeError("this trace is finished")
        table, drift = self.replay.details(config)
        slot = self._first + self.position
        row = int(np.searchsorted(table.starts, slot))
        events = list(_events(table.events, row))
        verdicts = [(event, i) for event, i in events if event.accepted is not None]
        forwards = self._forwards(events, {tier: int(cached[row]) for tier, cached in table.cached.items()})
        tokens = int(table.tokens[row])
        stats = BlockStats(
            config=config,
            position=self.position,
            context=self._prompt + self.position,
            tokens=tokens,
            seconds=sum(forward.seconds for forward in forwards) + self.replay.overhead * len(verdicts),
            verifications=tuple(self._verification(event, i, drift) for event, i in verdicts),
            forwards=tuple(forwards),
            origins=_origins(verdicts, config.target)[:tokens],
            drift=(*drift[slot : slot + tokens - 1].tolist(), 0.0),
            shadows=self._shadows(config, slot, tokens),
        )
        self.position += tokens
        self.seconds += stats.seconds
        return stats

    def _shadows(self, config: PyramidConfig, slot: int, tokens: int) -> tuple[Shadow, ...]:
        """What lookups find that the target does not ask."""
        flat = self.replay.flat
        asked = config.route[-2] if len(config.route) > 1 else ()
        found = []
        for tier in range(flat.header.target):
            if tier in flat.header.models or tier == asked or (isinstance(asked, tuple) and tier in asked):
                continue
            available, match, _ = (int(column[0]) for column in flat.copy(tier, np.array([slot]), np.array([slot])))
            proposed = min(available, SHADOW_LENGTH)
            seen = min(proposed, tokens)
            found.append(Shadow(tier, proposed, min(match, seen), min(match + 1, seen)))
        return tuple(found)

    def _forwards(self, events: list[tuple[Event, int]], cached: dict[int, int]) -> list[Forward]:
        """The block's forwards, as wide as this environment's caches make them; moves the caches on."""
        slot = self._first + self.position
        found: list[Forward] = []
        used: set[int] = set()
        for event, i in events:
            tier, proposed, is_draft = event.tier, int(event.proposed[i]), event.accepted is None
            for step in range(proposed if is_draft else 1):
                width = int(event.width[i]) if step == 0 else 1
                if tier not in used:
                    # The table took every cache to hold all of the text but its last token.
                    lag = slot - 1 - self._cached[tier]
                    width += lag if self.replay.prefill else min(lag, self.position)
                used.add(tier)
                read = self._prompt + int(event.pos[i]) - self._first + (step if is_draft else proposed)
                found.append(
                    Forward(
                        tier,
                        width,
                        1 if is_draft else proposed + 1,
                        read - width,
                        float(self.replay.prices(tier, width)),
                    )
                )
        self._cached.update((tier, cached[tier]) for tier in used)
        return found

    def _verification(self, event: Event, i: int, drift: np.ndarray) -> Verification:
        flat, tier, here = self.replay.flat, event.tier, int(event.pos[i])
        proposer, proposed, accepted = int(event.proposer[i]), int(event.proposed[i]), int(event.accepted[i])
        on_path = 0 if event.off else int(event.on_path[i])
        # Distributions were recorded up to the first token that is not the text's; off the text there are none.
        known = 0 if event.off else on_path + 1
        distance = self._distances(event, i, known) if proposed else ()
        divergence = distance
        is_target = tier == flat.header.target
        if proposed and self.replay.method.rule(is_target) == "fuzzy":
            divergence = self._divergences(event, i, known)
        kept = slice(here, here + min(on_path, accepted))
        loosened = drift[kept] > 0 if is_target else flat.top[tier][kept] != flat.ids[kept]
        off_loosened = not event.off and accepted > on_path and event.token[i] != flat.top[tier][here + on_path]
        return Verification(
            tier=tier,
            proposer=None if proposer < 0 else proposer,
            proposed=proposed,
            accepted=accepted,
            rejected=int(event.rejected[i]),
            emitted=int(event.emitted[i]),
            relaxed=int(loosened.sum()) + int(off_loosened),
            # Below the target the decoder knows them of emitted tokens only.
            entropy=_column(
                flat.entropy[tier], here, known if is_target else min(known, int(event.emitted[i])), proposed + 1
            ),
            proposal_entropy=_column(flat.entropy[proposer], here, known, proposed) if proposed else (),
            divergence=divergence,
            distance=distance,
        )

    def _divergences(self, event: Event, i: int, known: int) -> tuple[float, ...]:
        flat, tier, here = self.replay.flat, event.tier, int(event.pos[i])
        proposer, proposed, on_path = int(event.proposer[i]), int(event.proposed[i]), int(event.on_path[i])
        row = _column(flat.divergence(flat.divergence_name, proposer, tier), here, known, proposed)
        if proposer in flat.header.models:
            return row
        # Of a lookup the point mass on the first id that it proposes afresh at a position was compared, no other.
        tokens = [*flat.ids[here : here + on_path], int(event.token[i])]
        same = [token == fresh for token, fresh in zip(tokens, flat.top[proposer][here:])]
        return tuple(value if equal else math.nan for value, equal in zip(row, [*same, *[False] * proposed]))

    def _distances(self, event: Event, i: int, known: int) -> tuple[float, ...]:
        flat, tier, here = self.replay.flat, event.tier, int(event.pos[i])
        proposer, proposed, on_path = int(event.proposer[i]), int(event.proposed[i]), int(event.on_path[i])
        if flat.sampling:
            return _column(flat.divergence("tv", proposer, tier), here, known, proposed)
        row = _column(flat.gap[tier], here, min(known, on_path), proposed)
        if not known or proposed <= on_path:
            return row
        regret = float(flat.regret(tier, np.array([here + on_path]), event.token[i : i + 1], event.owner[i : i + 1])[0])
        return (*row[:on_path], regret, *row[on_path + 1 :])


def _events(events: list[Event], row: int):
    """(event, index of `row` in it) for the events of one block, in order."""
    for event in events:
        i = int(np.searchsorted(event.lane, row))  # lanes are sorted
        if i < len(event.lane) and event.lane[i] == row:
            yield event, i


def _origins(verdicts: list[tuple[Event, int]], target: int) -> tuple[int, ...]:
    """For every token of the last verdict the tier that first proposed it."""
    waiting: dict[int, list[int]] = {}
    for event, i in verdicts:
        proposer, accepted = int(event.proposer[i]), int(event.accepted[i])
        below = waiting.pop(proposer, None) or [proposer] * int(event.proposed[i])
        waiting.setdefault(event.tier, []).extend(
            [*below[:accepted], *[event.tier] * (int(event.emitted[i]) - accepted)]
        )
    return tuple(waiting[target])


def _column(values: np.ndarray, start: int, known: int, wanted: int) -> tuple[float, ...]:
    """`wanted` values from slot `start` on; NaN from the `known`-th on."""
    kept = values[start : start + min(known, wanted)].tolist()
    return (*kept, *[math.nan] * (wanted - len(kept)))
