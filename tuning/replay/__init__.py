"""Replay: what any config would do on recorded traces, in counters and modelled time."""

from importlib import import_module
from typing import Any

_HOMES = {
    "AcceptanceModel": "acceptance_model",
    "CostTable": "what_if_costs",
    "Replay": "engine",
    "ReplayResult": "engine",
    "load_costs": "what_if_costs",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Looked up on first use: most of it imports torch, which takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
