"""What a configuration should cost: measured forward times and the throughput formulas. No torch.

Units: seconds, tokens, tokens/s. Sources: Polybasic speculative decoding (arXiv 2510.26527: Lemma 3.1, Theorem 3.2),
PyramidSD (arXiv 2510.12966), and for the expected length of an accepted prefix 2211.17192.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config import PyramidConfig
from .errors import check_number

WIDTHS = (1, 2, 4, 8, 16, 32, 64)


class CostModel:
    """c_k(m): seconds for a forward of tier k over m new tokens.

    Linear between measured widths, extended with the last slope beyond them (never downwards: noise can turn a slope, and
    a long prompt would then cost less than nothing). A tier without a model (a lookup) has no entry and costs 0.
    """

    def __init__(self, table: Mapping[int, Mapping[int, float]]) -> None:
        self.table: dict[int, dict[int, float]] = {}
        for tier, row in table.items():
            if not row:
                raise ValueError(f"cost table: tier {tier} has no entries; expected width -> seconds")
            for width, seconds in row.items():
                check_number(f"cost of tier {tier} at width {width}", seconds, minimum=0.0)
            self.table[int(tier)] = {int(width): float(row[width]) for width in sorted(row, key=int)}
        # Keys as lists, because `seconds` runs for every config that control considers after every block.
        self._widths = {tier: list(row) for tier, row in self.table.items()}
        self._seen: dict[int, dict[int, int]] = {tier: {} for tier in self.table}  # looks by `observe`, per width

    def seconds(self, tier: int, width: int) -> float:
        """Seconds for `width` new tokens of `tier`; 0 for width 0 or a tier without a model."""
        if width <= 0 or tier not in self.table:
            return 0.0
        row, widths = self.table[tier], self._widths[tier]
        if width in row:
            return row[width]
        if len(widths) == 1 or width < widths[0]:
            return row[widths[0]]
        if width > widths[-1]:
            return row[widths[-1]] + self._last_slope(tier) * (width - widths[-1])
        right = bisect_left(widths, width)
        low, high = widths[right - 1], widths[right]
        return row[low] + (row[high] - row[low]) / (high - low) * (width - low)

    def _last_slope(self, tier: int) -> float:
        """Seconds per token beyond the last measured width, at least 0."""
        row, widths = self.table[tier], self._widths[tier]
        if len(widths) == 1:
            return 0.0
        return max(0.0, (row[widths[-1]] - row[widths[-2]]) / (widths[-1] - widths[-2]))

    def curve(self, tier: int, longest: int) -> np.ndarray:
        """`seconds(tier, width)` for every width up to `longest`, float64 [longest + 1] (width 0 costs nothing)."""
        widths = np.arange(longest + 1)
        if tier not in self.table:
            return np.zeros(len(widths))
        known = self._widths[tier]
        curve = np.interp(widths, known, list(self.table[tier].values()))
        curve += self._last_slope(tier) * np.maximum(0, widths - known[-1])
        curve[0] = 0.0
        return curve

    def observe(self, tier: int, width: int, seconds: float, weight: float = 0.1) -> None:
        """Learn from one forward: shape first, then scale.

        The first look at a width is believed in full, and carries along every width (and, at the very first look, every
        tier) that nobody has seen yet: a table measured elsewhere, or guessed from weight bytes, is mostly off by a
        factor. Of the first two looks the faster counts, since first calls are slow. What is known is then pulled as a
        whole row by `weight` times the relative error, because what changes while running (clock, context length)
        scales a row and does not bend it.
        """
        if tier not in self.table or seconds <= 0 or width <= 0:
            return
        row, seen = self.table[tier], self._seen[tier]
        near = min(row, key=lambda known: abs(math.log(known / width)))
        expected = self.seconds(tier, width)
        ratio = seconds / expected if expected else 1.0
        looks = seen.get(near, 0)
        if looks >= 2:
            # An outlier (a page fault, another process) must not move the table: at most a factor of two is believed.
            factor = 1 + weight * (min(max(ratio, 0.5), 2.0) - 1)
            touched = [(tier, known) for known in row]
        else:
            factor = ratio if looks == 0 else min(ratio, 1.0)
            touched = [(tier, known) for known in row if known == near or known not in seen]
            if not seen or list(seen) == [near]:
                touched += [
                    (other, known)
                    for other, widths in self.table.items()
                    if not self._seen[other] and other != tier
                    for known in widths
                ]
        for other, known in touched:
            self.table[other][known] *= factor
        seen[near] = looks + 1

    def rescale(self, tier: int, factor: float) -> None:
        """Multiply a tier's whole row."""
        for width in self.table.get(tier, {}):
            self.table[tier][width] *= factor

    def observed(self, tier: int) -> int:
        """Forwards of `tier` that `observe` has learned from."""
        return sum(self._seen.get(tier, {}).values())

    def to_dict(self) -> dict[int, dict[int, float]]:
        return {tier: dict(row) for tier, row in self.table.items()}

    def copy(self) -> CostModel:
        return CostModel(self.table)


def measure_costs(
    forward: Callable[[int, int], float],
    tiers: Sequence[int],
    widths: Sequence[int] = WIDTHS,
    repeats: int = 3,
    progress: Callable[[], Any] = lambda: None,
) -> CostModel:
    """A CostModel from `forward(tier, width) -> seconds`: medians of interleaved repeats, first call discarded.

    `progress` is called after each of the `len(tiers) * len(widths) * (repeats + 1)` forwards.
    """
    samples: dict[tuple[int, int], list[float]] = {(tier, width): [] for tier in tiers for width in widths}
    for repeat in range(repeats + 1):
        for (tier, width), values in samples.items():
            seconds = forward(tier, width)
            progress()
            if repeat:
                values.append(seconds)
    return CostModel({tier: {width: statistics.median(samples[tier, width]) for width in widths} for tier in tiers})


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a proposer earns at a verifier: `rate` per tested position, when it proposes at all.

    `hit` is the share of requests a proposer answers (a lookup abstains); `fill` caps a proposal at fewer tokens than
    asked for (a lookup that runs into the end of the text), as a share of the length.
    """

    rate: float
    hit: float = 1.0
    fill: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "hit", "fill"):
            check_number(f"Acceptance.{name}", getattr(self, name), 0.0, 1.0)


def expected_tokens(rate: float, length: float) -> float:
    """E(a, l) = (1 - a^(l+1)) / (1 - a): tokens one verification emits; l + 1 at a = 1 (arXiv 2211.17192, eq. 1)."""
    if rate >= 1.0:
        return length + 1.0
    return (1.0 - rate ** (length + 1)) / (1.0 - rate)


@dataclass(frozen=True, slots=True)
class Throughput:
    """A prediction: tokens and seconds of one block, so that tokens/s is their ratio."""

    tokens: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")


@dataclass
class ThroughputModel:
    """Nested throughput of any chain (the recursion of Polybasic's Lemma 3.1 and of PyramidSD's V_QD, V):

        E(a, l)            = (1 - a^(l+1)) / (1 - a)
        propose_cost(0, n) = n c_0(1)
        propose_cost(k, n) = n / E(a_k, l_k) * (propose_cost(k-1, l_k) + c_k(l_k + 1))
        tokens/s           = E(a_N, l_N) / (propose_cost(N-1, l_N) + c_N(l_N + 1))

    Args:
        costs: forward times.
        acceptance: (proposer, verifier) -> Acceptance. A proposer that is itself a verified tier is named by its own
            index: what tier 1 emits, at tier 2, is (1, 2). A missing pair raises KeyError.
        overhead: seconds per verification outside the models.
    """

    costs: CostModel
    acceptance: Mapping[tuple[int, int], Acceptance]
    overhead: float = 0.0

    def predict(self, config: PyramidConfig) -> Throughput:
        """Tokens and seconds of one block of `config`."""
        return self._round(config, len(config.route) - 1)

    def tokens_per_forward(self, config: PyramidConfig) -> dict[int, float]:
        """L = N / F of every verifying tier: tokens of the final output per forward of it."""
        tokens = self.predict(config).tokens
        forwards, found = 1.0, {config.target: tokens}
        for depth in range(len(config.route) - 2, 0, -1):
            tier, above = config.verifiers[depth - 1 : depth + 1]
            earned = self.acceptance[tier, above]
            asked = max(1.0, config.stage(above).length * earned.fill)
            forwards *= earned.hit * asked / self._round(config, depth).tokens
            found[tier] = tokens / forwards
        return found

    def propose_seconds(self, config: PyramidConfig, depth: int, n: float) -> float:
        """Seconds for the tier at `route[depth]` to propose n tokens."""
        entry = config.route[depth]
        if depth > 0:
            one = self._round(config, depth)
            return n / one.tokens * one.seconds
        tiers = entry if isinstance(entry, tuple) else (entry,)
        return n * self.costs.seconds(tiers[0], 1)

    def _round(self, config: PyramidConfig, depth: int) -> Throughput:
        """One verification by the tier at `route[depth]` and what led to it."""
        if depth == 0:
            return Throughput(1.0, self.costs.seconds(config.tiers[0], 1) + self.overhead)
        tier = config.verifiers[depth - 1]
        length = config.stage(tier).length
        below = config.route[depth - 1]
        tokens = seconds = 0.0
        missed = 1.0  # the share of rounds that reach this candidate of a fall-through entry
        for proposer in below if isinstance(below, tuple) else (below,):
            earned = self.acceptance[proposer, tier]
            share, asked = missed * earned.hit, max(1.0, length * earned.fill)
            missed -= share
            tokens += share * expected_tokens(earned.rate, asked)
            drafting = (
                asked * self.costs.seconds(proposer, 1)
                if depth == 1
                else self.propose_seconds(config, depth - 1, asked)
            )
            seconds += share * (drafting + self.costs.seconds(tier, round(asked) + 1))
        tokens += missed
        seconds += missed * self.costs.seconds(tier, 1)
        return Throughput(tokens, seconds + self.overhead)


@dataclass(frozen=True, slots=True)
class PredictedInsertion:
    """What the formulas say of keeping tier `tier` in a chain, every stage's length as it is.

    Args:
        with_tier, without_tier: tokens/s, the whole chain's nested cost with and without it.
        cost_ratio, bound: the two sides of Theorem 3.2 (`insertion_advice`).
    """

    tier: int
    with_tier: float
    without_tier: float
    cost_ratio: float
    bound: float

    @property
    def pays(self) -> bool:
        return self.with_tier > self.without_tier

    def __str__(self) -> str:
        verdict = "keep" if self.pays else "drop"
        return (
            f"{verdict} tier {self.tier}: {self.with_tier:.1f} tokens/s with it, {self.without_tier:.1f} without; "
            f"insertion theorem T_new/T_i = {self.cost_ratio:.3f} against its bound {self.bound:.3f}"
        )


def insertion_advice(model: ThroughputModel, config: PyramidConfig, tier: int) -> PredictedInsertion:
    """What dropping the middle tier `tier` from the route would do.

    Theorem 3.2 of arXiv 2510.26527: inserting M_new below M_i pays when T_new / T_i < L_new (1 / L_i - 1 / L_i'), L_i'
    being what L_i becomes. L is N / F throughout, as Lemma 3.1 has it: tokens of the final output per forward of that
    model. So L_new counts tokens that survive every tier above, not what M_new itself lets through in a round: without
    that, N (T_new / L_new + T_i / L_i') would not be the time that the two models take. T is the time of a forward at
    the width that the chain runs it at.

    The theorem holds the passes of lower tiers fixed (it is exact where they cost nothing); the verdict `pays` therefore
    compares the full nested predictions.

    Raises:
        ValueError: `tier` is not a middle tier of the route.
    """
    depth = config.route.index(tier) if tier in config.route else 0
    if not 0 < depth < len(config.route) - 1:
        raise ValueError(f"tier {tier} is not a middle tier of route {config.route}")
    without = config.with_route(config.route[:depth] + config.route[depth + 1 :])
    above = config.verifiers[depth]
    lengths, lengths_without = model.tokens_per_forward(config), model.tokens_per_forward(without)

    def forward_seconds(verifier: int) -> float:
        return model.costs.seconds(verifier, config.stage(verifier).length + 1)

    return PredictedInsertion(
        tier,
        model.predict(config).tokens_per_second,
        model.predict(without).tokens_per_second,
        cost_ratio=forward_seconds(tier) / forward_seconds(above),
        bound=lengths[tier] * (1 / lengths_without[above] - 1 / lengths[above]),
    )
