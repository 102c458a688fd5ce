"""Control by a bandit policy: each arm is judged by the blocks that ran it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from policies import Exp3, Policy

from ..config import PyramidConfig
from ..stats import BlockStats, nanmean
from .conservative import ConservativeController, ConservativeRequest
from .controller import RequestInfo
from .pool import Pool
from .reward import SpeedReward

CONTEXT_DIM = 4


class BanditController(ConservativeController):
    """Any policy of `policies` over the arms, rewarded by speed.

    Args:
        arms: configs. policy: over as many arms; priors are its constructor's business.
        reward: from a block and its steady seconds to [0, 1]. pool: as in `ConservativeController`.
    """

    def __init__(self, arms: Sequence[PyramidConfig], policy: Policy, reward: SpeedReward, pool: Pool) -> None:
        super().__init__(arms, pool)
        if policy.n_arms != len(self.arms):
            raise ValueError(f"policy has {policy.n_arms} arms, expected {len(self.arms)}, one per config")
        self.policy = policy
        self.reward = reward
        self.name = f"bandit:{policy.name}"

    def begin(self, request: RequestInfo) -> BanditRequest:
        return BanditRequest(self, request)

    def _learned(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "reference": self.reward.reference}

    def _load_learned(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.reward.reference = float(state["reference"])


class BanditRequest(ConservativeRequest):
    """One request under a `BanditController`."""

    controller: BanditController

    def __init__(self, controller: BanditController, request: RequestInfo) -> None:
        super().__init__(controller, request)
        self._context = [0.0] * CONTEXT_DIM
        self._selected: int | None = None

    def _rank(self) -> Iterable[int]:
        self._selected = self.controller.policy.select(self._context)
        yield self._selected
        # What the exploration budget cannot pay for is replaced by the best known arm that it can.
        yield from np.nan_to_num(-self.controller.policy.means, nan=math.inf).argsort(kind="stable").tolist()

    def _reason(self, arm: int) -> str:
        return (
            f"{self.controller.policy.name} chose it"
            if arm == self._selected
            else "best known among those the exploration budget can pay for"
        )

    def _learn(self, block: BlockStats, arm: int) -> None:
        if arm == self._selected or not isinstance(self.controller.policy, Exp3):
            self.controller.policy.update(arm, self.controller.reward(block, self.tracker.steady(block)), self._context)
        self._selected = None
        self._context = context(block, self._context)


def context(block: BlockStats, before: Sequence[float]) -> list[float]:
    """What a contextual policy sees, four numbers in [-1, 1]: entropy of the target and of what was proposed to it
    (tanh of nats), a running acceptance rate, and the position (log scale, 1 at 1023 tokens)."""
    if not block.verifications:
        return list(before)
    top = block.verifications[-1]
    target, proposed = nanmean(top.entropy), nanmean(top.proposal_entropy)
    accepted = before[2] + 0.2 * (top.accepted / top.tested - before[2]) if top.tested else before[2]
    return [
        before[0] if math.isnan(target) else math.tanh(target),
        before[1] if math.isnan(proposed) else math.tanh(proposed),
        accepted,
        min(1.0, math.log2(1 + block.position + block.tokens) / 10),
    ]
