"""Deprecated: this is `tuning.replay.what_if_costs` now."""

from typing import Any

from tuning.deprecated import forward


def __getattr__(name: str) -> Any:
    return forward(__name__, "tuning.replay.what_if_costs", name)
