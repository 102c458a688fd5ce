"""Workers on one machine: processes that measure trials of one study while their parent looks on."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import torch

from tuning.study.interrupts import DeferredInterrupt

_LOOK = 0.5  # seconds between two looks at what was finished


class WorkersFailed(RuntimeError):
    """All workers ended, and work was left."""


def run_workers(target: Callable[..., None], arguments: tuple, workers: int, look: Callable[[], None]) -> list[int]:
    """Run `target(*arguments, number)` in `workers` processes, numbered from 1, and wait for all of them.

    Processes are spawned, not forked: a fork of a process that has used torch's threads hangs.

    Args:
        arguments: anything that pickles. look: called about twice a second, and once in the end.

    Returns:
        Exit codes of the workers that failed.

    Raises:
        KeyboardInterrupt: Ctrl-C, once all of them have ended.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // workers)
    processes = [
        context.Process(target=_work, args=(target, arguments, number, threads), name=f"worker {number}")
        for number in range(1, workers + 1)
    ]
    with DeferredInterrupt() as ctrl_c:
        try:
            with _deaf_to_ctrl_c():
                for process in processes:
                    process.start()
            while any(process.is_alive() for process in processes) and not ctrl_c.pressed:
                wait([process.sentinel for process in processes if process.is_alive()], timeout=_LOOK)
                look()
        finally:
            _end(processes)
        look()
    return [process.exitcode for process in processes if process.exitcode]


def parent_is_alive() -> bool:
    """Whether the process that started this worker still runs."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()


def _work(target: Callable[..., None], arguments: tuple, number: int, threads: int) -> None:
    """What a worker process does. Ctrl-C reaches it through its parent alone, as SIGTERM, which ends it at once."""
    torch.set_num_threads(threads)
    target(*arguments, number)


def _end(processes: list[BaseProcess]) -> None:
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.terminate()  # nothing happens to those that have ended
    for process in started:
        process.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started within inherit that they ignore Ctrl-C, from their first instant on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
