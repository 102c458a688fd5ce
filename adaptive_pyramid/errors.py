"""Sentences for users' mistakes: every one names the field, the value and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any


class FamilyUnavailable(RuntimeError):
    """A family's weights can neither be found on this machine nor be fetched; the message says what would help."""


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> str:
    """The sentence for a name that is not among `choices`, with the nearest valid one offered.

    >>> unknown_name("task", "csqq", ["csqa", "gsm8k"])
    "unknown task 'csqq'; did you mean 'csqa'? (known: csqa, gsm8k)"
    """
    known = sorted(str(choice) for choice in choices)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    # A list longer than a line or two hides the hint instead of helping.
    listing = f" (known: {', '.join(known)})" if len(known) <= 20 or not near else ""
    return f"unknown {kind} {name!r}{hint}{listing}"


def shown(value: object) -> str:
    """`value` in a message: its repr, or its type alone where that would fill a screen (a model passed by mistake)."""
    text = repr(value)
    return text if len(text) <= 200 and "\n" not in text else f"an object of type {type(value).__name__}"


def check_keys(where: str, given: Any, known: Iterable[str], required: Iterable[str] = ()) -> None:
    """Raise ValueError unless `given` is a mapping that has all keys of `required` and none that is not in `known`."""
    known = list(known)
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a mapping with {', '.join(known)}, got {given!r}")
    for key in given:
        if key not in known:
            raise ValueError(unknown_name(f"key in {where}", key, known))
    missing = [key for key in required if key not in given]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(map(repr, missing))}")


def check_int(field: str, value: object, minimum: int) -> int:
    """`value` if it is an int (not a bool) of at least `minimum`; else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{field} must be at least {minimum}, got {value}")
    return value


def check_number(field: str, value: object, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """`value` as a float if it is a finite real number within [minimum, maximum]; else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{field} must be a number, got {value!r}")
    if not math.isfinite(value) or not minimum <= value <= maximum:
        raise ValueError(f"{field} must be a finite number in [{minimum:g}, {maximum:g}], got {value!r}")
    return float(value)
