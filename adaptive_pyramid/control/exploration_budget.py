"""The exploration budget: how much time may be lost against target-only decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import check_keys, check_number


@dataclass
class ExplorationBudget:
    """Keeps `excess <= share * elapsed + advance` at the end of every block, and `excess <= share * elapsed` at the end.

    Args:
        share: of all elapsed time that may be lost. elapsed: seconds booked so far. excess: seconds above what
            target-only decoding would have taken for the same tokens; negative after gains.
        advance: the price of one shortest probe, seconds, without which nothing could start.

    The advance is the price of one shortest probe, and is only paid if the budget will have earned it by the end of the
    request. So a draft does not read a long prompt for a short answer.

    Gains pay back losses and earn credit, but from one request to the next at most `share * elapsed` of credit is
    carried over: a gain on an earlier text must not pay for a large loss on this one.
    """

    share: float = 0.02
    elapsed: float = 0.0
    excess: float = 0.0
    advance: float = 0.0

    def start(self) -> None:
        """A new request begins."""
        self.excess = max(self.excess, -self.share * self.elapsed)

    def grant(self, seconds: float) -> None:
        """Count `seconds` of decoding that tuning has done as elapsed, without any loss."""
        self.elapsed += seconds
        self.excess -= self.share * seconds

    def book(self, seconds: float, target_only: float) -> None:
        """A block took `seconds`; target-only decoding would have taken `target_only` for the same tokens."""
        self.elapsed += seconds
        self.excess += seconds - target_only

    def left(self, ahead: float) -> float:
        """Seconds that may be lost now; `ahead`: seconds that target-only decoding would still take for the request."""
        return self.share * self.elapsed + min(self.advance, self.share * ahead) - self.excess

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys(
            "exploration budget state",
            state,
            ("share", "elapsed", "excess", "advance"),
            required=("elapsed", "excess", "advance"),
        )
        self.elapsed = check_number("exploration budget elapsed", state["elapsed"], minimum=0.0)
        self.excess = check_number("exploration budget excess", state["excess"])
        self.advance = check_number("exploration budget advance", state["advance"], minimum=0.0)
