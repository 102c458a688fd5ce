"""The throughput formulas for many configs at once: what `throughput.ThroughputModel` computes, as a few array operations.

Control asks for the speed of every config after every block, so this is laid out for that: the configs are compiled
once, and only rates and costs change. Two things are finer than in the closed formula. Acceptance may depend on the
position in the proposal, so E(l) = 1 + sum over j <= l of a_1 ... a_j. And a mid tier overshoots what it was asked for
by part of a round: it proposes l + (E[R^2] / E[R] - 1) / 2 tokens on average, R being the tokens of one of its rounds
(renewal theory), and never less than one round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..config import PyramidConfig
from ..throughput import CostModel


class Pair(NamedTuple):
    """Who verifies whom, under which thresholds: what an acceptance estimate belongs to.

    `lower` are the thresholds below the proposer: a qualifier that lets more through earns less at the target.
    `owner` is the arm that keeps the estimate to itself; -1 = all arms share it.
    """

    proposer: int
    verifier: int
    tau: float = 0.0
    lower: tuple[float, ...] = ()
    owner: int = -1


def pairs_of(config: PyramidConfig, depth: int, owner: int = -1) -> list[Pair]:
    """The pairs that meet at `route[depth]`: one, or one per candidate of a fall-through bottom."""
    verifier, below = config.verifiers[depth - 1], config.route[depth - 1]
    lower = tuple(config.stage(tier).tau for tier in config.verifiers[: depth - 1])
    return [
        Pair(proposer, verifier, config.stage(verifier).tau, lower if any(lower) else (), owner)
        for proposer in (below if isinstance(below, tuple) else (below,))
    ]


class Rates(NamedTuple):
    """What acceptance is believed to be: the leading axis holds any number of opinions (the mean, an optimistic one).

    accept: [opinions, pairs, longest] probability that position j is accepted, given all before it.
    hit: [opinions, tiers] share of requests a bottom tier answers. fill: [tiers] share of the length it then fills.
    """

    accept: np.ndarray
    hit: np.ndarray
    fill: np.ndarray


class Forecast:
    """Tokens and seconds per block of `configs` (all of one pyramid). `owners`: see `Pair.owner`.

    Attributes:
        pairs: the acceptance estimates it needs, in the order of `Rates.accept`. longest: positions per pair.
    """

    def __init__(self, configs: Sequence[PyramidConfig], owners: Sequence[int] | None = None) -> None:
        self.configs = list(configs)
        self.n_tiers = configs[0].n_tiers
        self.pairs: list[Pair] = []
        self._index: dict[Pair, int] = {}
        stages = [
            self._compiled(config, owner) for config, owner in zip(self.configs, owners or [-1] * len(self.configs))
        ]
        self.depth = max(map(len, stages))
        self._levels = [_Level([row[d] if d < len(row) else None for row in stages]) for d in range(self.depth)]
        top = max((max(level.length) for level in self._levels), default=1)
        # A mid tier overshoots by less than one round, whose tokens the lengths below it bound.
        self.longest = int(min(512, top * 2 + 1))

    def _compiled(self, config: PyramidConfig, owner: int) -> list[_Stage]:
        rows = []
        for depth in range(1, len(config.route)):
            tier = config.verifiers[depth - 1]
            pairs = pairs_of(config, depth, owner)
            for pair in pairs:
                if pair not in self._index:
                    self._index[pair] = len(self.pairs)
                    self.pairs.append(pair)
            rows.append(
                _Stage(tier, config.stage(tier).length, [self._index[p] for p in pairs], [p.proposer for p in pairs])
            )
        return rows

    def add(self, pair: Pair) -> int:
        """Have an estimate for `pair` too, though no config uses it. Its index."""
        if pair not in self._index:
            self._index[pair] = len(self.pairs)
            self.pairs.append(pair)
        return self._index[pair]

    def costs(self, model: CostModel, per_verification: float = 0.0, per_draft: float = 0.0) -> np.ndarray:
        """Seconds by tier and width, [tiers, widths], the work outside the models included.

        Row `tier` for verifying, row `n_tiers + tier` for drafting one token (width 1).
        """
        table = np.zeros((2 * self.n_tiers, self.longest + 2))
        for tier in range(self.n_tiers):
            if tier not in model.table:
                continue
            table[tier] = model.curve(tier, self.longest + 1) + per_verification
            table[self.n_tiers + tier] = model.seconds(tier, 1) + per_draft
        return table

    def evaluate(self, rates: Rates, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, seconds) of one block without prefill, [opinions, configs] each."""
        opinions, pairs, longest = rates.accept.shape
        # Per pair and length l: E(l), the tokens of a round, and the mean of their square.
        rounds = np.ones((2, opinions, pairs, longest + 1))
        np.cumprod(rates.accept, axis=2, out=rounds[0, :, :, 1:])  # P(the first j are accepted)
        np.multiply(rounds[0], 2 * np.arange(longest + 1) + 1, out=rounds[1])
        rounds = rounds.cumsum(axis=3).reshape(2, -1)
        offsets = np.arange(opinions)[:, None] * (pairs * (longest + 1))
        costs_flat, width = costs.ravel(), costs.shape[1]

        def price(tier: np.ndarray, widths: np.ndarray | int) -> np.ndarray:
            return costs_flat.take(tier * width + widths)

        tokens = np.ones((opinions, len(self.configs)))
        seconds = np.full_like(tokens, costs[self.n_tiers - 1, 1])
        for d, level in enumerate(self._levels):
            if d == 0:
                at = self._bottom(level, rounds, offsets, rates, price)
            else:
                below, squares, spent = at
                proposed = np.minimum(np.maximum(below, level.length + 0.5 * (squares / below - 1)), longest)
                low = proposed.astype(np.intp)
                high = np.minimum(low + 1, longest)
                share = proposed - low
                start = offsets + level.pair[0] * (longest + 1)
                here = rounds.take(start + low, axis=1)
                here += (rounds.take(start + high, axis=1) - here) * share
                once = price(level.tier, low + 1)
                once += (price(level.tier, high + 1) - once) * share
                at = here[0], here[1], proposed / below * spent + once
            # Configs whose route ends here; those that end higher up overwrite it at the next level.
            np.copyto(tokens, at[0], where=level.present)
            np.copyto(seconds, at[2], where=level.present)
        return tokens, seconds

    def _bottom(
        self,
        level: _Level,
        rounds: np.ndarray,
        offsets: np.ndarray,
        rates: Rates,
        price: Callable[[np.ndarray, np.ndarray | int], np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        longest = rates.accept.shape[2]
        alone = price(level.tier, 1)
        done = np.zeros((2, 1, 1))  # expected tokens, and expected squares of them
        missed: float | np.ndarray = 1.0
        seconds: float | np.ndarray = 0.0
        for pair, proposer, exists in zip(level.pair, level.proposer, level.exists):
            asked = np.maximum(1, np.rint(level.length * rates.fill[proposer])).astype(np.intp)
            share = missed * (rates.hit.take(proposer, axis=1) * exists)
            missed = missed - share
            done = done + share * rounds.take(offsets + (pair * (longest + 1) + asked), axis=1)
            seconds = seconds + share * (asked * price(self.n_tiers + proposer, 1) + price(level.tier, asked + 1))
        return done[0] + missed, done[1] + missed, seconds + missed * alone


class _Stage(NamedTuple):
    tier: int
    length: int
    pairs: list[int]
    proposers: list[int]


class _Level:
    """Stage d of every config, as arrays [configs]; candidates of a fall-through bottom as lists of them."""

    def __init__(self, stages: Sequence[_Stage | None]) -> None:
        self.present = np.array([stage is not None for stage in stages])
        self.tier = np.array([stage.tier if stage else 0 for stage in stages])
        self.length = np.array([stage.length if stage else 1 for stage in stages])
        candidates = max(len(stage.pairs) for stage in stages if stage)
        self.pair: list[np.ndarray] = []
        self.proposer: list[np.ndarray] = []
        self.exists: list[np.ndarray] = []
        for c in range(candidates):
            here = [stage if stage is not None and c < len(stage.pairs) else None for stage in stages]
            self.pair.append(np.array([stage.pairs[c] if stage else 0 for stage in here]))
            self.proposer.append(np.array([stage.proposers[c] if stage else 0 for stage in here]))
            self.exists.append(np.array([stage is not None for stage in here], dtype=float))
