"""What tuning knows before control has seen a block."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from ..config import PyramidConfig
from ..throughput import Acceptance, expected_tokens


@dataclass(frozen=True)
class Experience:
    """What tuning has seen of one config: enough for control to start with it instead of finding it again.

    Args:
        config: the tuned one. acceptance: verifying tier -> accepted / tested positions, for the tiers of its route.
        lengths: verifying tier -> tokens per verification.
        seconds: target-only decoding's for the texts it was tuned on, known to be exceeded by nothing: the account's credit.
    """

    config: PyramidConfig
    acceptance: Mapping[int, float]
    lengths: Mapping[int, float]
    seconds: float

    def pairs(self, model_tiers: Container[int]) -> dict[tuple[int, int], Acceptance]:
        """(proposer, verifier) -> Acceptance, where the measurements tell.

        How often a lookup answers follows from L = 1 + hit (E(a, l) - 1). Below a fall-through they tell of the mixture
        alone: its rate is taken for the model's, since the lookup's share of it is unknown.
        """
        found: dict[tuple[int, int], Acceptance] = {}
        for below, tier in zip(self.config.route, self.config.route[1:]):
            if tier not in self.acceptance or isinstance(tier, tuple):
                continue
            rate = self.acceptance[tier]
            if isinstance(below, tuple):
                found |= {(proposer, tier): Acceptance(rate) for proposer in below if proposer in model_tiers}
            elif below in model_tiers:
                found[below, tier] = Acceptance(rate)
            elif tier in self.lengths:
                gain = expected_tokens(rate, self.config.stage(tier).length) - 1
                found[below, tier] = Acceptance(rate, hit=min(1.0, max(0.0, self.lengths[tier] - 1) / gain) if gain else 0.0)
        return found
