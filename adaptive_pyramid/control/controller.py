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
class RequestControl(Protocol):
    """Chooses the config of every block of one request, from earlier blocks only (that is why adapting keeps exactness).

    Several requests of one controller may run at once, block by block in any order: what belongs to a text is kept here.
    """

    def choose(self) -> Decision:
        """What the next block shall run, and why. Called once before every block."""

    def observe(self, block: BlockStats) -> None:
        """What that block did. Called once after every block, the last one too."""

    @property
    def notes(self) -> list[str]:
        """Sentences worth a user's attention about this request: what was switched off, and why."""


@runtime_checkable
class Controller(Protocol):
    """What is learned from all requests, and a `RequestControl` for each of them."""

    name: str

    def begin(self, request: RequestInfo) -> RequestControl:
        """Control of one request, to be asked and told until its text ends (or is given up)."""

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

    def begin(self, request: RequestInfo) -> FixedController:
        return self  # nothing of a request is kept

    def choose(self) -> Decision:
        return Decision(self.config, "fixed")

    def observe(self, block: BlockStats) -> None:
        """Nothing is learned."""

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("name") != self.name:
            raise ValueError(f"this state belongs to controller {state.get('name')!r}; expected {self.name!r}")
        self.config = PyramidConfig.from_dict(state["config"])


class StartStepController:
    """A controller of the interface before `begin`: `start(request)` and `step(block)` return configs, and every request
    shares its state, so that texts of one such controller should not run at once.

    Args:
        former: an object with start, step and notes; its `decision`, if there is one, gives the reason.
    """

    def __init__(self, former: Any) -> None:
        self.former = former
        self.name = getattr(former, "name", type(former).__name__)

    def begin(self, request: RequestInfo) -> StartStepRequest:
        return StartStepRequest(self.former, request)

    def state_dict(self) -> dict[str, Any]:
        return self.former.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.former.load_state_dict(state)


class StartStepRequest:
    """One request under a `StartStepController`."""

    def __init__(self, former: Any, request: RequestInfo) -> None:
        self._former = former
        self._config = former.start(request)

    def choose(self) -> Decision:
        decision = getattr(self._former, "decision", None)
        return Decision(self._config, "" if decision is None else decision.reason)

    def observe(self, block: BlockStats) -> None:
        self._config = self._former.step(block)

    @property
    def notes(self) -> list[str]:
        return list(self._former.notes)
