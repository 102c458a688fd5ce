"""Deprecated: this is `tuning.research.oracle` now."""

from typing import Any

from tuning.deprecated import forward

_RENAMED = {"hindsight": "oracle_speeds", "Hindsight": "Oracle"}


def __getattr__(name: str) -> Any:
    return forward(__name__, "tuning.research.oracle", name, _RENAMED.get(name))
