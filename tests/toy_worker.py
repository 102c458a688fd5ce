"""One worker of a study of integers, without any model: for tests that start many of them, and kill some.

    python -m tests.toy_worker URL TOTAL FOLDER WORKERS

Waits until as many WORKERS have started, and queues 0 to QUEUED - 1 if nobody has. DEADLY kills every worker that begins
it, ONCE the first one only, while FOLDER has files of these names. Every value that is measured to its end leaves a file
in FOLDER, whose name ends in the worker's process id.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import optuna

from tuning.study import storage
from tuning.study.trial_queue import TrialQueue

QUEUED, ONCE, DEADLY = 6, 3, 4


def open_toy(url: str) -> storage.OpenStudy:
    """The study that all toy workers share, with the shortest heartbeat that Optuna has."""
    return storage.open_study(url, "toy", {}, optuna.pruners.NopPruner(), heartbeat=1)


def work(url: str, total: int, folder: Path, workers: int) -> None:
    (folder / f"started-{os.getpid()}").touch()
    while len(list(folder.glob("started-*"))) < workers:
        time.sleep(0.01)
    opened = open_toy(url)
    with opened.lock:
        if "queued" not in opened.study.user_attrs:
            for value in range(QUEUED):
                opened.study.enqueue_trial({"x": value})
            opened.study.set_user_attr("queued", True)

    def objective(trial: optuna.Trial, claimed: Callable[[], None], _: object) -> float:
        value = trial.suggest_int("x", 0, 10**9)
        claimed()
        time.sleep(0.02)
        once = folder / "once"
        if (value == ONCE and once.exists()) or (value == DEADLY and (folder / "deadly").exists()):
            once.unlink() if value == ONCE else None
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"measured-{value}-{uuid.uuid4().hex}-{os.getpid()}").touch()
        return float(value)

    TrialQueue(opened, total, objective).run()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
