"""Decoding without models: a config played over recorded traces, forward by forward, priced with the cost table.

Every tier is a table from position to token. For greedy lossless methods token counts and the target's passes come out
exactly as real decoding would give them, and for two-tier routes so does every forward. Once a mid tier has left the
target's text within a block, its further passes there are estimated: at each position it and the tiers below go on as
they would on the target's text. The same holds behind a drifting acceptance at the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.throughput import CostModel

from tuning.traces import Trace


@dataclass
class Played:
    """What a config did on some traces.

    Args:
        tokens, seconds: in all. forwards: (tier, width) -> how many, prefill included (its width is the prompt's).
        accepted, tested: per verifying tier. rounds: verifications per tier.
    """

    tokens: int = 0
    seconds: float = 0.0
    forwards: Counter[tuple[int, int]] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    tested: Counter[int] = field(default_factory=Counter)
    rounds: Counter[int] = field(default_factory=Counter)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")


class Replay:
    """Plays configs over traces.

    Args:
        overhead: seconds per verification outside the models.
    """

    def __init__(self, traces: Sequence[Trace], costs: CostModel, method: Method, overhead: float = 0.0) -> None:
        self.traces = list(traces)
        self.costs = costs
        self.method = method
        self.overhead = overhead

    def play(self, config: PyramidConfig) -> Played:
        """`config` over all traces."""
        played = Played()
        for trace in self.traces:
            _Decoding(trace, config, self.method, played).run()
        priced = (count * self.costs.seconds(tier, width) for (tier, width), count in played.forwards.items())
        played.seconds = sum(priced) + self.overhead * sum(played.rounds.values())
        return played


class _Decoding:
    """One trace under one config: the recursion of `decoding.tiers`, over positions instead of models."""

    def __init__(self, trace: Trace, config: PyramidConfig, method: Method, played: Played) -> None:
        self.trace = trace
        self.config = config
        self.method = method
        self.played = played
        self.target = config.target
        self.text: list[int] = []                # new tokens so far, a mid tier's tentative ones included
        self.verified = 0
        self.cached: dict[int, list[int]] = {}   # new tokens in each tier's cache; a missing tier has not begun
        self.agreed: dict[int, int] = {}         # how many leading ones of them are known to be final

    def run(self) -> None:
        total = len(self.trace.text)
        while len(self.text) < total:
            emitted = self._round(len(self.config.route) - 1, total - len(self.text))
            self.text += emitted
            self.verified = len(self.text)
            self.played.tokens += len(emitted)

    def _round(self, depth: int, cap: int) -> list[int]:
        tier = self.config.route[depth]
        proposer, proposal = (None, []) if depth == 0 or cap < 2 else self._propose(
            depth - 1, min(self.config.stage(tier).length, cap - 1), cap - 1)
        self._forward(tier, proposal)
        start, best = len(self.text), self.trace.best[tier]
        rule, tau = self.method.rule(tier == self.target), self.config.stage(tier).tau if depth else 0.0
        accepted = 0
        for i, token in enumerate(proposal):
            if not self.trace.accepts(rule, tau, proposer, tier, start + i, token):
                break
            accepted += 1
        self.played.rounds[tier] += 1
        self.played.accepted[tier] += accepted
        self.played.tested[tier] += min(accepted + 1, len(proposal))
        return proposal[:accepted] + [best[start + accepted]]

    def _propose(self, depth: int, n: int, cap: int) -> tuple[int | None, list[int]]:
        """-> (the tier that the tokens come from, tokens); (None, []) where all abstain."""
        entry = self.config.route[depth]
        if depth > 0:
            return entry, self._rounds(depth, n, cap)
        for tier in entry if isinstance(entry, tuple) else (entry,):
            proposal = self._looked_up(tier, n) if tier in self.trace.found else self._drafted(tier, n)
            if proposal:
                return tier, proposal
        return None, []

    def _rounds(self, depth: int, n: int, cap: int) -> list[int]:
        known = len(self.text)
        while len(self.text) - known < n:
            self.text += self._round(depth, cap - (len(self.text) - known))
        tokens = self.text[known:]
        del self.text[known:]
        return tokens

    def _looked_up(self, tier: int, n: int) -> list[int]:
        return self.trace.found[tier][len(self.text)][:n]

    def _drafted(self, tier: int, n: int) -> list[int]:
        start = len(self.text)
        tokens = self.trace.best[tier][start : start + n]
        for i in range(len(tokens)):
            self._forward(tier, tokens[:i])
        return tokens

    def _forward(self, tier: int, tail: list[int]) -> None:
        """Count a forward of `tier` over what it has not cached of the text and `tail`.

        That always holds the newest token: whatever was emitted last came from a tier that never feeds itself its own.
        """
        cached = self.cached.get(tier)
        fed = [*self.text, *tail]
        keep = 0
        if cached is not None:
            keep = min(self.agreed[tier], len(cached))
            limit = min(len(cached), len(fed))
            while keep < limit and cached[keep] == fed[keep]:
                keep += 1
            self.agreed[tier] = min(keep, self.verified)
        else:
            self.agreed[tier] = 0
        width = len(fed) - keep if cached is not None else len(fed) + self.trace.prompt_length
        self.played.forwards[tier, width] += 1
        self.cached[tier] = fed
