"""What steers decoding between blocks. Controllers see numbers, never models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..config import PyramidConfig
from ..stats import BlockStats, Decision


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a controller may know of a request before its first block.

    Args:
        prompt_length, max_new_tokens: tokens. do_sample: False = greedy. lossless: whether the method can drift.
        drift_budget: allowance per token, or None. reused: prompt tokens already in the target's cache.
    """

    prompt_length: int
    max_new_tokens: int
    do_sample: bool = False
    lossless: bool = True
    drift_budget: float | None = None
    reused: int = 0


@runtime_checkable
class Controller(Protocol):
    """Chooses the config of every block, from earlier blocks only (that is why adapting keeps exactness)."""

    name: str

    def start(self, request: RequestInfo) -> PyramidConfig:
        """The first block's config."""

    def step(self, block: BlockStats) -> PyramidConfig:
        """The next block's config, given what the last one did. Called after every block, the last one too."""

    @property
    def decision(self) -> Decision | None:
        """Why the config returned last was chosen."""

    @property
    def notes(self) -> list[str]:
        """Sentences worth a user's attention about this request: what was switched off, and why."""

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain data (JSON or YAML)."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; ValueError if it belongs to another controller."""


class FixedController:
    """Always the same config: the null strategy, and what every method but `pyramid` uses by default."""

    name = "fixed"

    def __init__(self, config: PyramidConfig) -> None:
        self.config = config
        self.notes: list[str] = []

    def start(self, request: RequestInfo) -> PyramidConfig:
        return self.config

    def step(self, block: BlockStats) -> PyramidConfig:
        return self.config

    @property
    def decision(self) -> Decision:
        return Decision(self.config.label, "fixed")

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("name") != self.name:
            raise ValueError(f"this state belongs to controller {state.get('name')!r}; expected {self.name!r}")
        self.config = PyramidConfig.from_dict(state["config"])
