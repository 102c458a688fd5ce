"""From a block to a number in [0, 1] that a bandit policy can learn from."""

from __future__ import annotations

from ..errors import check_number
from ..stats import BlockStats


class SpeedReward:
    """Tokens per second over the best plausible speed, less a price on drift.

    The reference follows the fastest blocks seen and fades by half a per cent per block, so that rewards stay spread over
    [0, 1] when machine or text change. Speed alone would drive every threshold to its maximum: with a drift budget,
    drift costs `drift_price` of the reward where it reaches the budget.

    A block's ratio tokens / seconds is what is averaged, not the ratio of sums that counts in the end: a bandit sees no
    more. The planner does not use this reward.

    Args:
        start: first guess of the best plausible tokens/s. drift_budget: per token, or None. drift_price: in [0, 1].
    """

    FADE = 0.995

    def __init__(self, start: float, drift_budget: float | None = None, drift_price: float = 0.1) -> None:
        self.reference = check_number("SpeedReward.start", start, minimum=1e-12)
        self.drift_budget = drift_budget
        self.drift_price = check_number("SpeedReward.drift_price", drift_price, 0.0, 1.0)

    def __call__(self, block: BlockStats, seconds: float) -> float:
        """The reward of `block`, which took `seconds` without prefill and catching up."""
        speed = block.tokens / seconds
        self.reference = max(self.reference * self.FADE, speed)
        price = 0.0
        if self.drift_budget and block.tokens:
            price = self.drift_price * sum(block.drift) / (self.drift_budget * block.tokens)
        return min(1.0, max(0.0, speed / self.reference - price))
