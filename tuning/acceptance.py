"""Deprecated: this is `tuning.replay.acceptance_model` now."""

from typing import Any

from tuning.deprecated import forward


def __getattr__(name: str) -> Any:
    return forward(__name__, "tuning.replay.acceptance_model", name)
