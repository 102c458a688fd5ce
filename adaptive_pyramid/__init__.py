"""Pyramid speculative decoding for Hugging Face causal language models.

Names are loaded on first use, so that the parts without torch (configs, formulas, profiles) import without it.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_HOMES = {
    "AdaptivePyramid": "pyramid",
    "CostModel": "throughput",
    "Method": "decoding.method",
    "Profile": "profile",
    "PyramidConfig": "config",
    "PromptLookup": "decoding.drafters",
    "PyramidDecoder": "decoding.decoder",
    "StageConfig": "config",
    "families": "models.families",
    "quantize": "models.quantize",
    "truncate": "models.truncate",
}
_MODULES = {"families"}
_DEPRECATED = {"Lookup": "PromptLookup"}  # until 0.3

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        new = _DEPRECATED[name]
        warnings.warn(f"{__name__}.{name} is now {__name__}.{new}", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_HOMES[name]}", __name__)
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
