"""What decoding shows of itself, block by block. Host numbers only, no torch.

A *block* is one verification by the target and everything that led to it. Per-position values stand in the order of the
proposal; NaN marks a value that does not exist (the entropy of a lookup, say). Entropies are of the unprocessed
temperature-1 distributions, in nats.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .config import PyramidConfig

PREDICTION_ALARM = 0.25  # median relative error of predicted block times past which `explain` raises an alarm


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass: `width` new tokens on top of `context` cached ones.

    `needed` of the width were asked for; the rest is prefill or catching up (a tier that re-enters the route)."""

    tier: int
    width: int
    needed: int
    context: int
    seconds: float

    @property
    def is_prefill(self) -> bool:
        # One token of lag is normal: the last draft token of a fully accepted proposal was never fed to its own tier.
        return self.width > self.needed + 1


@dataclass(frozen=True, slots=True)
class Verification:
    """One tier's verdict on one proposal.

    Args:
        tier: the verifying tier. proposer: the tier the proposal came from; None if every tier below abstained.
        proposed: tokens proposed. accepted: leading ones kept. rejected: 1 if a tested token was refused, else 0.
        emitted: accepted + one correction or bonus token (no such token after EOS).
        relaxed: accepted tokens that only tau let through (the rule at tau = 0 refused them).
        entropy: the verifier's, at each of the proposed + 1 positions; below the target NaN behind a refusal, as a rule.
        proposal_entropy: the proposer's, at each position.
        divergence: the rule's divergence at each position, the number that is compared with tau.
        distance: of the proposed token's distribution from the verifier's: total variation in sampling, log-prob regret
            (nats) in greedy decoding. An `exact` test accepts with probability 1 - distance in sampling, and in
            greedy decoding where the distance is 0.
    """

    tier: int
    proposer: int | None
    proposed: int
    accepted: int
    rejected: int
    emitted: int
    relaxed: int
    entropy: tuple[float, ...]
    proposal_entropy: tuple[float, ...]
    divergence: tuple[float, ...]
    distance: tuple[float, ...]

    @property
    def tested(self) -> int:
        """Positions really tested: accepted ones and the refused one; what stands behind a refusal never is."""
        return self.accepted + self.rejected


@dataclass(frozen=True, slots=True)
class StageStats:
    """Sums over one tier's verifications."""

    tier: int
    rounds: int
    proposed: int
    accepted: int
    rejected: int
    emitted: int
    relaxed: int
    entropy: float
    proposal_entropy: float

    @classmethod
    def of(cls, tier: int, verifications: Iterable[Verification]) -> StageStats:
        rows = [v for v in verifications if v.tier == tier]
        total = {
            name: sum(getattr(v, name) for v in rows)
            for name in ("proposed", "accepted", "rejected", "emitted", "relaxed")
        }
        return cls(
            tier,
            len(rows),
            **total,
            entropy=nanmean(h for v in rows for h in v.entropy),
            proposal_entropy=nanmean(h for v in rows for h in v.proposal_entropy),
        )

    @property
    def acceptance_rate(self) -> float:
        """accepted / (accepted + rejected); NaN if nothing was tested."""
        tested = self.accepted + self.rejected
        return self.accepted / tested if tested else math.nan

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, the correction or bonus token included; NaN without a verification."""
        return self.emitted / self.rounds if self.rounds else math.nan


@dataclass(frozen=True, slots=True)
class Decision:
    """What a controller chose for a block, and why; printed by `explain()`.

    Args:
        config: what to run. reason: one phrase.
        predicted_seconds, predicted_tokens: of the block, where the controller predicts.
    """

    config: PyramidConfig
    reason: str
    predicted_seconds: float | None = None
    predicted_tokens: float | None = None


SHADOW_LENGTH = 16  # ids that a lookup is asked for only to see whether they come true


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a lookup would have proposed to the target in a block that did not ask it: it costs nothing to look.

    Args:
        tier: the lookup's. proposed: tokens found; 0 = it would have abstained.
        accepted: leading ones that the block emitted. tested: these, and the first that differs if the block went so far.
    """

    tier: int
    proposed: int
    accepted: int
    tested: int

    @classmethod
    def of(cls, tier: int, found: Sequence[int], emitted: Sequence[int]) -> Shadow:
        accepted = next(
            (i for i, (one, other) in enumerate(zip(found, emitted)) if one != other), min(len(found), len(emitted))
        )
        return cls(tier, len(found), accepted, accepted + (accepted < min(len(found), len(emitted))))


@dataclass(frozen=True, slots=True)
class BlockStats:
    """One block.

    Args:
        config: what it ran. position: index of its first new token. context: prompt + output before the block, tokens.
        tokens: new tokens emitted. seconds: wall time, everything included.
        verifications, forwards: in the order they happened.
        origins: for every emitted token the tier that first proposed it.
        drift: per emitted token, how far its distribution lay from the target's (total variation in
            sampling, nats of log-prob regret in greedy decoding); 0 for verified, corrected and bonus tokens.
        budget_left: balance of the drift bucket after the block; None without a drift budget.
        copies: device-to-host copies made for verification.
        near_ties: emitted greedy tokens whose runner-up was within the dtype's rounding of the best logit, or within the
            target's measured difference between forwards over several tokens and over one, where that is larger.
        shadows: one per lookup that the target did not ask in this block.
        decision: what control chose; None without control. control_seconds: wall time of choosing it and of learning
            from the block before, not part of `seconds`.
    """

    config: PyramidConfig
    position: int
    context: int
    tokens: int
    seconds: float
    verifications: tuple[Verification, ...] = ()
    forwards: tuple[Forward, ...] = ()
    origins: tuple[int, ...] = ()
    drift: tuple[float, ...] = ()
    budget_left: float | None = None
    copies: int = 0
    near_ties: int = 0
    shadows: tuple[Shadow, ...] = ()
    decision: Decision | None = None
    control_seconds: float = 0.0

    @property
    def model_seconds(self) -> float:
        """Seconds spent inside forward passes."""
        return sum(f.seconds for f in self.forwards)

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """One per verifying tier that worked in this block, from bottom to top."""
        return tuple(StageStats.of(tier, self.verifications) for tier in sorted({v.tier for v in self.verifications}))

    @property
    def is_prefill(self) -> bool:
        return any(f.is_prefill for f in self.forwards)


@dataclass(slots=True)
class GenerationStats:
    """Everything about one generated sequence.

    Args:
        blocks: in order. seed: what sampling gives the same text with (None: greedy, or none does). drift_unit: "total variation" or "nats".
        drift_budget: the allowance per token that was asked for, or None.
        notes: sentences about what was switched off, clipped or adapted, and why.
    """

    blocks: list[BlockStats] = field(default_factory=list)
    method: str = ""
    seed: int | None = None
    drift_unit: str = "nats"
    drift_budget: float | None = None
    control_name: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def seconds(self) -> float:
        return sum(block.seconds for block in self.blocks)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def stages(self) -> tuple[StageStats, ...]:
        verifications = [v for block in self.blocks for v in block.verifications]
        return tuple(StageStats.of(tier, verifications) for tier in sorted({v.tier for v in verifications}))

    @property
    def forwards(self) -> dict[int, int]:
        """Forward passes per tier."""
        return dict(sorted(Counter(f.tier for block in self.blocks for f in block.forwards).items()))

    @property
    def tokens_by_tier(self) -> dict[int, int]:
        """Emitted tokens by the tier that first proposed them."""
        return dict(sorted(Counter(tier for block in self.blocks for tier in block.origins).items()))

    @property
    def near_ties(self) -> int:
        """Greedy tokens at which rounding, or the width of a forward, can decide between two tokens."""
        return sum(block.near_ties for block in self.blocks)

    @property
    def drift(self) -> list[float]:
        """Drift of every emitted token, in `drift_unit`."""
        return [d for block in self.blocks for d in block.drift]

    @property
    def mean_drift(self) -> float:
        """Drift per token; at most `drift_budget`, at every prefix, when there is one."""
        return sum(self.drift) / self.tokens if self.tokens else 0.0

    @property
    def certificate(self) -> str:
        """One sentence on how far the output may be from the target's."""
        total = sum(self.drift)
        if total == 0:
            return "drift 0: every token was verified exactly"
        if self.drift_unit == "nats":
            text = (
                f"drift {total:.4g} nats of log-prob regret over {self.tokens} tokens ({self.mean_drift:.4g} per token)"
            )
        else:
            bound = "vacuous, it reached 1" if total >= 1 else f"{total:.4g}"
            text = (
                f"drift {total:.4g} in total variation over {self.tokens} tokens ({self.mean_drift:.4g} per token); "
                f"its mean over runs bounds the distance of the output distributions (here {bound})"
            )
        if self.drift_budget is not None:
            text += f"; budget {self.drift_budget:g} per token, kept at every prefix"
        return text

    def summary(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.tokens} tokens in {self.seconds:.2f} s = {self.tokens_per_second:.1f} tokens/s, "
            f"{len(self.blocks)} blocks, method {self.method}, control {self.control_name}"
        ]
        for stage in self.stages:
            accepted = (
                "nothing proposed" if math.isnan(stage.acceptance_rate) else f"acceptance {stage.acceptance_rate:.2f}"
            )
            lines.append(
                f"  tier {stage.tier}: {stage.rounds} verifications, {stage.acceptance_length:.2f} tokens each, {accepted}"
            )
        lines.append(f"  tokens by tier {self.tokens_by_tier}, forwards by tier {self.forwards}")
        lines.append(f"  {self.certificate}")
        if self.near_ties:
            lines.append(f"  {self.near_ties} near-ties: there, rounding can decide between two tokens")
        return "\n".join(lines + [f"  {note}" for note in self.notes])

    @property
    def prediction_error(self) -> float:
        """Median of |predicted / measured - 1| over block times, prefill left out; NaN where nothing was predicted."""
        errors = [
            abs(block.decision.predicted_seconds / block.seconds - 1)
            for block in self.blocks
            if block.decision is not None
            and block.decision.predicted_seconds is not None
            and block.seconds > 0
            and not block.is_prefill
        ]
        return statistics.median(errors) if errors else math.nan

    def explain(self, last: int | None = None) -> str:
        """The block table: what ran, why, predicted against measured time and tokens, acceptance and entropy per stage.

        Below it the summary, and how far predictions were off, with an alarm past 25 % (`PREDICTION_ALARM`).

        Args:
            last: only this many last blocks (default all).
        """
        rows = [
            ("block", "token", "config", "why", "ms", "predicted", "tokens", "predicted", "accepted/tested", "entropy")
        ]
        for index, block in list(enumerate(self.blocks))[-last if last else 0 :]:
            decision = block.decision or Decision(block.config, "")
            rows.append(
                (
                    str(index),
                    str(block.position),
                    block.config.label,
                    decision.reason,
                    f"{1000 * block.seconds:.1f}",
                    "" if decision.predicted_seconds is None else f"{1000 * decision.predicted_seconds:.1f}",
                    str(block.tokens),
                    "" if decision.predicted_tokens is None else f"{decision.predicted_tokens:.1f}",
                    " ".join(f"{s.tier}:{s.accepted}/{s.accepted + s.rejected}" for s in block.stages),
                    " ".join(f"{s.tier}:{s.entropy:.2f}" for s in block.stages),
                )
            )
        lines = [_aligned(rows), self.summary()]
        error = self.prediction_error
        if not math.isnan(error):
            lines.append(
                f"  block times were predicted to {100 * error:.0f} % (median)"
                + (": ALARM, the forecast does not fit this machine or text" if error > PREDICTION_ALARM else "")
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or YAML: the aggregates, not the blocks."""
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "method": self.method,
            "seed": self.seed,
            "control": self.control_name,
            "blocks": len(self.blocks),
            "acceptance": {stage.tier: stage.acceptance_rate for stage in self.stages},
            "acceptance_length": {stage.tier: stage.acceptance_length for stage in self.stages},
            "tokens_by_tier": self.tokens_by_tier,
            "forwards": self.forwards,
            "near_ties": self.near_ties,
            "mean_drift": self.mean_drift,
            "drift_unit": self.drift_unit,
            "drift_budget": self.drift_budget,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.summary()


def nanmean(values: Iterable[float]) -> float:
    """Mean of the values that are not NaN; NaN if there is none."""
    kept = [value for value in values if not math.isnan(value)]
    return sum(kept) / len(kept) if kept else math.nan


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
