"""What is known before control has seen a block: from tuning, or from measuring tiers against their target."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from ..config import PyramidConfig
from ..throughput import Acceptance, expected_tokens


@dataclass(frozen=True)
class WarmStart:
    """Where control starts instead of at guesses.

    Args:
        acceptance: (proposer, verifier) -> Acceptance, of the pairs that were looked at.
        seconds: of target-only decoding for the tokens looked at. They count as elapsed without any loss, which is
            credit to start with: finding out was paid for.
        config: what tuning chose, if tuning it was; None: nobody has compared configs.
    """

    acceptance: Mapping[tuple[int, int], Acceptance]
    seconds: float
    config: PyramidConfig | None = None

    @classmethod
    def tuned(
        cls,
        config: PyramidConfig,
        rates: Mapping[int, float],
        lengths: Mapping[int, float],
        seconds: float,
        model_tiers: Container[int],
    ) -> WarmStart:
        """From what was measured of one config: verifying tier -> acceptance rate, and -> tokens per verification.

        How often a lookup answers follows from L = 1 + hit (E(a, l) - 1). Below a fall-through they tell of the mixture
        alone: its rate is taken for the model's, since the lookup's share of it is unknown.
        """
        found: dict[tuple[int, int], Acceptance] = {}
        for below, tier in zip(config.route, config.verifiers):
            if tier not in rates:
                continue
            rate = rates[tier]
            if isinstance(below, tuple):
                found |= {(proposer, tier): Acceptance(rate) for proposer in below if proposer in model_tiers}
            elif below in model_tiers:
                found[below, tier] = Acceptance(rate)
            elif tier in lengths:
                gain = expected_tokens(rate, config.stage(tier).length) - 1
                found[below, tier] = Acceptance(rate, hit=min(1.0, max(0.0, lengths[tier] - 1) / gain) if gain else 0.0)
        return cls(found, seconds, config)
