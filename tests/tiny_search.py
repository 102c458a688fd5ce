"""A search over tiny models: `tiny_family()` for tests in this process, a command line for those that need another.

python -m tests.tiny_search OUT TRIALS [METHOD [WORKERS]]
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import torch

from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.models.families import Family
from tests.tiny import graded_family, tiny_tokenizer
from tuning.study.runner import SearchResult, run_search
from tuning.study.settings import Settings
from tuning.study.storage import HEARTBEAT

QUESTIONS, TOKENS = 2, 8


def tiny_family() -> Family:
    """A lookup and two models that agree on most tokens."""
    models = graded_family("llama", 2, dtype=torch.float64, max_position_embeddings=2048)
    names = ("lookup", "middle", "target")
    sources = {
        "lookup": {"lookup": True},
        "middle": {"from": "target", "layers": [0]},
        "target": {"repo": "tiny", "revision": "1"},
    }
    return Family("tiny", (PromptLookup(), *models), names, tiny_tokenizer(), (), sources, torch.float64)


def deadly_family(marker: Path) -> Family:
    """The tiny family, but `marker` kills the worker process that finds it in the middle of a trial.

    A file kills once; a directory, which cannot be removed like one, everybody.
    """
    family = tiny_family()
    family.models[-1].register_forward_pre_hook(_Death(marker))
    return family


class _Death:
    """A forward hook. The first forwards are those that measure a target when the worker makes its pyramid."""

    def __init__(self, marker: Path) -> None:
        self.marker, self.forwards = marker, 0

    def __call__(self, *_: object) -> None:
        if multiprocessing.parent_process() is None:
            return
        self.forwards += 1
        if self.forwards > 10 and self.marker.exists():
            if self.marker.is_file():
                self.marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def search(
    out: Path,
    trials: int = 4,
    method: str = "pyramid",
    family: Family | None = None,
    heartbeat: int = HEARTBEAT,
    **settings,
) -> SearchResult:
    chosen = {"questions": QUESTIONS, "max_new_tokens": TOKENS, **settings}
    asked = Settings("csqa", family="tiny", trials=trials, method=method, out=out, **chosen)
    return run_search(asked, family or tiny_family(), heartbeat)


if __name__ == "__main__":
    torch.set_num_threads(1)
    workers = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    outcome = search(
        Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4], workers=workers, clock="model" if workers > 1 else "wall"
    )
    sys.exit(130 if outcome.interrupted else 0)
