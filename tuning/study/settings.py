"""What to search, checked before anything slow starts. No torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from adaptive_pyramid.errors import check_int, check_number, unknown_name
from tuning.replay.what_if_costs import CostTable, load_costs
from tuning.tasks.formats import Example
from tuning.tasks.task import Task, load_task

CALIBRATION_QUESTIONS = 8
CHOICE_QUESTIONS = 4  # on which the best trials are told apart: what is left of their differences is small
STATED_QUESTIONS = 12  # of what a profile states: with a spread of 15 % over questions, give or take 10 %
SAMPLERS = ("gp", "tpe", "random")
CLOCKS = ("wall", "model")


@dataclass(frozen=True)
class Limits:
    """What a config must keep; None = anything goes.

    Args:
        min_score: least task score. max_score_loss: most that the score may fall below target-only decoding's, on the
            same questions. max_drift: most mean drift per token, in nats of log-prob regret.
    """

    min_score: float | None = None
    max_score_loss: float | None = None
    max_drift: float | None = None

    def excesses(self, score: float, score_loss: float, drift: float) -> dict[str, float]:
        """By how much each limit is broken; at most 0 where it is kept. Limits that are None are left out."""
        pairs = {
            "min_score": (self.min_score, lambda limit: limit - score),
            "max_score_loss": (self.max_score_loss, lambda limit: score_loss - limit),
            "max_drift": (self.max_drift, lambda limit: drift - limit),
        }
        return {name: excess(limit) for name, (limit, excess) in pairs.items() if limit is not None}


@dataclass(frozen=True)
class Settings:
    """One search, as on the command line.

    Args:
        task, family: names, or paths of YAML files. method: a name. data: another data file for the task.
        trials: the study's total, resumed ones included. questions: measured in every trial.
        target: which of the family's targets, as in `families.load`. max_new_tokens: timed per question.
        seed: of the choice of questions and of the sampler.
        out: the profile's path (None = TASK.yaml); tables and the default storage lie beside it.
        storage: database URL. run_code: run generated code in a sandbox where the task scores by unit tests.
        sampler: one of SAMPLERS, for the trials that the prior did not choose. min_gain: the study ends early when the
            sampler `gp` expects to gain less than this share of the best ratio; 0 = never.
        clock: one of CLOCKS; "model" prices the forwards that really happened with the cost table.
        multi_objective: maximise speed and score together, without limits or pruning.
        costs: a what-if cost table (a shipped name or a YAML file) that prices everything instead of this machine's;
            needs the clock "model", so that no number mixes the two. cost_rows: those of its rows that stand for the
            family's models, draft first (None = all).
        workers: processes that measure on this machine; more than one with the clock "model" only.

    Raises:
        ValueError, TypeError: an impossible value, named as on the command line.
    """

    task: str
    family: str = "smollm2-135m"
    data: str | None = None
    method: str = "pyramid"
    trials: int = 12
    questions: int = 12
    max_new_tokens: int = 48
    seed: int = 0
    out: Path | None = None
    storage: str | None = None
    run_code: bool = False
    limits: Limits = field(default_factory=Limits)
    sampler: str = "gp"
    min_gain: float = 0.0
    clock: str = "wall"
    multi_objective: bool = False
    target: str = "auto"
    costs: str | None = None
    cost_rows: tuple[str, ...] | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        for name, known in (("sampler", SAMPLERS), ("clock", CLOCKS)):
            if getattr(self, name) not in known:
                raise ValueError(unknown_name(_option(name), getattr(self, name), known))
        if self.costs is None and self.cost_rows is not None:
            raise ValueError("--cost-rows belongs to --costs")
        if self.costs is not None and self.clock != "model":
            raise ValueError(
                "--costs prices forwards for another machine than the one whose clock is read; expected "
                f"--clock model with it, got --clock {self.clock}"
            )
        self.what_if()
        check_number("--min-gain", self.min_gain, 0.0, 1.0)
        if self.min_gain and (self.sampler != "gp" or self.multi_objective):
            raise ValueError(
                "--min-gain needs the sampler gp and one objective: nothing else knows what it expects to gain"
            )
        if self.multi_objective and any(limit is not None for limit in asdict(self.limits).values()):
            raise ValueError(
                "--multi-objective shows the whole front, so it takes no limits; expected none of "
                + ", ".join(_option(name) for name in asdict(self.limits))
            )
        for name, least in (("trials", 1), ("questions", 1), ("max_new_tokens", 2), ("seed", 0), ("workers", 1)):
            check_int(_option(name), getattr(self, name), least)
        if self.workers > 1 and self.clock != "model":
            raise ValueError(
                f"--workers {self.workers} needs --clock model: two workers cannot time honestly on one machine"
            )
        for name, value in asdict(self.limits).items():
            if value is not None:
                check_number(_option(name), value, 0.0, math.inf if name == "max_drift" else 1.0)
        if self.out is not None:
            if self.out.suffix not in (".yaml", ".yml") or self.out.is_dir():
                raise ValueError(f"--out must be a file that ends in .yaml, got {str(self.out)!r}")
            if not self.out.parent.is_dir():
                raise ValueError(f"--out {self.out}: there is no directory {str(self.out.parent)!r}")

    def what_if(self) -> CostTable | None:
        """The table of `costs`; None where this machine's costs are measured."""
        return None if self.costs is None else load_costs(self.costs, self.cost_rows)


class ChosenExamples(NamedTuple):
    """A task and disjoint lists of its examples: those measured in every trial, those that calibrate, and fresh ones.

    `fresh` are for what the profile states: nothing else may look at them. Empty where the task has too few.
    """

    task: Task
    measured: list[Example]
    calibration: list[Example]
    fresh: list[Example]


def choose_examples(settings: Settings) -> ChosenExamples:
    """The examples of a search, chosen by its seed. What `--questions` leaves is shared: half of it calibrates, at most
    CALIBRATION_QUESTIONS.

    Raises:
        ValueError, FileNotFoundError: as `load_task`, and when no example is left to calibrate on.
    """
    task = load_task(
        settings.task,
        data=settings.data,
        limit=settings.questions + CALIBRATION_QUESTIONS + STATED_QUESTIONS + CHOICE_QUESTIONS,
        seed=settings.seed,
        run_code=settings.run_code,
    )
    if len(task.examples) <= settings.questions:
        raise ValueError(
            f"--questions {settings.questions} leaves nothing to calibrate on: task {task.name!r} has "
            f"{len(task.examples)} examples; expected at most {len(task.examples) - 1}"
        )
    left = task.examples[settings.questions :]
    calibration = min(CALIBRATION_QUESTIONS, max(1, len(left) // 2))
    return ChosenExamples(task, task.examples[: settings.questions], left[:calibration], left[calibration:])


def questions_digest(examples: Sequence[Example]) -> str:
    """What tells two choices of questions apart."""
    chats = json.dumps([[example.system, example.history, example.turns] for example in examples])
    return hashlib.sha256(chats.encode()).hexdigest()[:16]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
