"""Ctrl-C only where it can do no harm.

Python raises KeyboardInterrupt between any two instructions. In the middle of a transaction that can leave the database
locked; at the start of the thread that shows a trial alive (Optuna's heartbeat), it leaves a thread without an end, for
which Python waits at exit, for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class DeferredInterrupt:
    """A context that holds Ctrl-C back: KeyboardInterrupt comes in `let_in`, or when the context ends.

    It changes nothing outside the main thread, which alone gets signals, nor where Ctrl-C is ignored or has a handler
    of somebody else's.

    Attributes:
        pressed: whether Ctrl-C was pressed within.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._open = False
        self._holds = False

    def __enter__(self) -> DeferredInterrupt:
        self.pressed = False
        self._holds = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._holds:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.pressed and kind is None:
            raise KeyboardInterrupt

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Here, Ctrl-C raises KeyboardInterrupt at once; so does entering if it was pressed before."""
        self._open = True
        try:
            if self.pressed:
                raise KeyboardInterrupt
            yield
        finally:
            self._open = False

    def _press(self, *_: Any) -> None:
        self.pressed = True
        if self._open:
            self._open = False  # a second one would interrupt what cleans up after the first
            raise KeyboardInterrupt
