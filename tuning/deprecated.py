"""Names that documentation gave to modules before they moved into rooms; they warn, and go with the next version."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def forward(old: str, new: str, name: str, renamed: str | None = None) -> Any:
    """What `old.name` is now. `old`, `new`: names of modules. `renamed`: its name there, if that is another."""
    if name.startswith("__"):
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    found = getattr(import_module(new), renamed or name)
    warnings.warn(f"{old}.{name} is now {new}.{renamed or name}", DeprecationWarning, stacklevel=3)
    return found
