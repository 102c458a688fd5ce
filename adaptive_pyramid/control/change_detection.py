"""Noticing that the text has changed kind."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import check_number


@dataclass
class PageHinkley:
    """A two-sided Page-Hinkley test on a stream of surprises (observed minus expected).

    The sum of surprises beyond `slack`, counted from its lowest point, exceeds `threshold`: the mean has risen; the same
    downwards. Page (1954), "Continuous inspection schemes".
    """

    slack: float
    threshold: float
    up: float = 0.0
    down: float = 0.0

    def __post_init__(self) -> None:
        check_number("PageHinkley.slack", self.slack, minimum=0.0)
        check_number("PageHinkley.threshold", self.threshold, minimum=1e-9)

    def observe(self, surprise: float) -> bool:
        """Whether this surprise sets off the alarm; the test then starts afresh."""
        self.up = max(0.0, self.up + surprise - self.slack)
        self.down = max(0.0, self.down - surprise - self.slack)
        if max(self.up, self.down) <= self.threshold:
            return False
        self.up = self.down = 0.0
        return True
