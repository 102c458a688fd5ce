"""Deprecated: this is `tuning.research.oracle` now."""

from typing import Any

from tuning.deprecated import forward


def __getattr__(name: str) -> Any:
    return forward(__name__, "tuning.research.oracle", name)
