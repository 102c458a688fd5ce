"""What a search says while it works: progress bars and notes on stderr, and how long each step took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# soft_wrap where used: a sentence stays one line when stderr is a file.
stderr = Console(stderr=True, highlight=False)


def silence() -> None:
    """No notes and no bars from this process on: its parent speaks for it."""
    stderr.quiet = True


def note(text: str) -> None:
    """One sentence on stderr."""
    stderr.print(text, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr; yields what to call after each of `total` pieces of work."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


@dataclass
class Steps:
    """Wall time of each step in seconds, and the process's peak memory in MB up to its end."""

    rows: list[tuple[str, float, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.rows.append((name, time.perf_counter() - started, peak_memory_mb()))


def peak_memory_mb() -> float:
    """The most memory this process has held so far, in MB (10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
