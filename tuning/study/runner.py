"""From a family and a task to a profile: the steps of `python -m tuning.search`."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

import adaptive_pyramid
from adaptive_pyramid.control.factory import default_config
from adaptive_pyramid.decoding.method import resolve
from adaptive_pyramid.models import families
from adaptive_pyramid.profile import Profile
from adaptive_pyramid.pyramid import AdaptivePyramid
from tuning.study import storage, trial_table
from tuning.study.benchmark import Bench
from tuning.study.objective import MIN_QUESTIONS, Objective, Question, ask
from tuning.study.prior import Prior
from tuning.study.prior_data import calibrate
from tuning.study.profile_builder import make_profile
from tuning.study.rerun import FINALISTS, Rerun, rerun_best, split_fresh
from tuning.study.sampler import PriorSampler
from tuning.study.search_space import SearchSpace
from tuning.study.settings import (
    CHOICE_QUESTIONS,
    STATED_QUESTIONS,
    ChosenExamples,
    Limits,
    Settings,
    choose_examples,
    questions_digest,
)
from tuning.study.trial_queue import TrialQueue
from tuning.study.trial_record import ScoreSummary, TrialRecord, worker_of
from tuning.study.workers import WorkersFailed, parent_is_alive, run_workers
from tuning.tasks.formats import Example
from tuning.tasks.task import Task
from tuning.terminal.progress import Steps, note, progress_bar, silence
from tuning.traces.format import Header
from tuning.traces.recording import tier_infos

PRIOR_SHARE = 2 / 3  # of the trials come from the prior, the others from the sampler
DEFAULT_SCORE_LOSS = 0.02  # of methods that drift: without a limit, speed alone would drive every tau to its maximum


@dataclass
class SearchResult:
    """What a search leaves: the profile (None if no trial was usable), its path, and whether Ctrl-C ended it."""

    profile: Profile | None
    out: Path
    interrupted: bool = False


def run_search(
    settings: Settings, family: families.Family | None = None, heartbeat: int = storage.HEARTBEAT
) -> SearchResult:
    """All of it in one call."""
    return prepare(settings, choose_examples(settings), family, heartbeat).run()


def prepare(
    settings: Settings,
    examples: ChosenExamples,
    family: families.Family | None = None,
    heartbeat: int = storage.HEARTBEAT,
) -> Search:
    """Load and check everything that a user can get wrong.

    Args:
        examples: from `choose_examples`, which needs no torch and so is asked first.
        family: loaded already; default: `settings.family` by name.
        heartbeat: seconds between two signs of life of a worker.

    Raises:
        ValueError, TypeError, OSError, FamilyUnavailable: one sentence on what is wrong, and with what.
    """
    steps = Steps()
    task, measured, calibration, fresh = examples
    method = resolve(settings.method)
    out = settings.out or Path(f"{task.name}.yaml")
    url = storage.checked_url(settings.storage or storage.default_storage(out), settings.workers)
    given = family
    with steps.step("load the family"):
        family = given if given is not None else families.load(settings.family, target=settings.target)
        pyramid = AdaptivePyramid(family, method=method, control="fixed")
    space = SearchSpace.of(method, len(family.models), pyramid.pool().routes())
    bench = Bench(pyramid, method, settings.max_new_tokens)
    limits = settings.limits
    if not method.lossless and not settings.multi_objective and limits.max_score_loss is None:
        limits = replace(limits, max_score_loss=DEFAULT_SCORE_LOSS)
    what_if = settings.what_if()
    if what_if is not None:
        what_if.model(
            Header(tier_infos(bench.pyramid.decoder, family)).model_names
        )  # one that does not fit is an error now
    record = _record(settings, task, measured, family, bench, limits)
    opened = _open(url, out.stem, record, 1 + settings.multi_objective, heartbeat)
    return Search(
        settings, task, measured, calibration, fresh, family, bench, space, limits, opened, url, out, given, steps
    )


@dataclass
class Search:
    """A search that is ready to run. Fields: what `prepare` made of the settings.

    `given`: the family to hand to worker processes; None = they load it by name.
    """

    settings: Settings
    task: Task
    measured: list[Example]
    calibration: list[Example]
    fresh: list[Example]
    family: families.Family
    bench: Bench
    space: SearchSpace
    limits: Limits
    opened: storage.OpenStudy
    url: str
    out: Path
    given: families.Family | None = None
    steps: Steps = field(default_factory=Steps)

    @property
    def study(self) -> optuna.Study:
        return self.opened.study

    def run(self) -> SearchResult:
        """Calibrate, run the trials, write profile and tables. Ctrl-C ends the trials and keeps what is finished."""
        with self._alone():
            prior, questions = self._calibrated()
            self._enqueue(prior)
        objective = self._objective(prior, questions, platform.node())
        self._note_other_machines()
        interrupted, rerun = False, None
        try:
            with self.steps.step("trials"):
                self._trials(objective)
            with self.steps.step("rerun"):
                rerun = self._rerun(objective.bench, questions)
        except (KeyboardInterrupt, WorkersFailed) as reason:
            if str(reason):
                note(str(reason))
            interrupted = True
        profile = self._write(objective, rerun)
        if interrupted:
            note(
                f"Interrupted: {len(storage.finished(self.study))} finished trials are kept in "
                f"{storage.shown(self.url)}; the same command goes on from there."
            )
        return SearchResult(profile, self.out, interrupted)

    def work(self, number: int) -> None:
        """Measure trials as worker `number` of a parent process, which has calibrated, and will write the results."""
        objective = self._objective(*self._calibrated(), _worker_name(number))
        self._shared(objective).run(go_on=parent_is_alive)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep every other worker of the study waiting meanwhile."""
        self.opened.lock.acquire(lambda: note("Another worker is setting up this study: waiting for it."))
        try:
            yield
        finally:
            self.opened.lock.release()

    def _calibrated(self) -> tuple[Prior, list[Question]]:
        """What all trials need, measured once per study."""
        return self._prior(), self._questions()

    def _timing_bench(self, prior: Prior) -> Bench:
        """The bench that measures trials: priced with the cost table under the clock `model`."""
        return replace(self.bench, price=prior.block_seconds) if self.settings.clock == "model" else self.bench

    def _objective(self, prior: Prior, questions: Sequence[Question], worker: str) -> Objective:
        return Objective(
            self._timing_bench(prior),
            questions,
            self.space,
            prior,
            self.task,
            self.limits,
            worker,
            with_score=self.settings.multi_objective,
        )

    def _note_other_machines(self) -> None:
        workers = {worker_of(trial) or platform.node() for trial in self.study.get_trials(deepcopy=False)}
        if self.url.startswith("sqlite") and any(not worker.startswith(platform.node()) for worker in workers):
            note(
                "Several machines share this study in an SQLite file. That is not advised: file systems of several "
                "machines keep SQLite's locks badly; use PostgreSQL (docs/scale-out.md)."
            )

    def _prior(self) -> Prior:
        """Cost table and traces, measured once per study."""
        known = self.study.user_attrs.get("prior")
        if known is None:
            known = calibrate(self.bench, self.calibration, self.settings.what_if(), self.steps)
            self.study.set_user_attr("prior", known)
        return Prior.from_dict(known, self.bench.method)

    def _questions(self) -> list[Question]:
        """The target's own answers, generated once per study: they give the score and the later turns' prompts."""
        known = self.study.user_attrs.get("answers")
        with self.steps.step("target's answers"), progress_bar("target's answers", len(self.measured)) as advance:
            questions = ask(self.bench, self.measured, known, advance)
        if known is None:
            self.study.set_user_attr("answers", [question.answers for question in questions])
        return questions

    def _enqueue(self, prior: Prior) -> None:
        """Queue the prior's best configs and the untuned default, once per study, and what an interruption left unmeasured."""
        if "enqueued" not in self.study.user_attrs:
            candidates = self.space.candidates()
            with progress_bar("prior", len(candidates)) as advance:
                picks = prior.picks(candidates, max(1, round(self.settings.trials * PRIOR_SHARE)), advance)
            untuned = default_config(self.space.n_tiers)  # what a profile has to beat
            for config in [*picks, untuned] if untuned.route in self.space.routes else picks:
                self.study.enqueue_trial(self.space.params(config), skip_if_exists=True)
            self.study.set_user_attr("enqueued", True)
        storage.requeue_interrupted(self.study)

    def _sampler(self, prior: Prior) -> optuna.samplers.BaseSampler:
        """What chooses the trials after the queued ones."""
        # Another seed for every trial, whoever begins it: with one per worker, all workers would draw the same numbers.
        begun = len(self.study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self.settings.seed, begun]).generate_state(1)[0])
        if self.settings.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if self.settings.sampler == "gp" and not self.settings.multi_objective:
            return PriorSampler(self.space, prior, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True, group=True)

    def _trials(self, objective: Objective) -> None:
        """Run trials until the study holds as many finished ones as asked for."""
        left = self.settings.trials - len(storage.finished(self.study))
        if left <= 0:
            return
        if self.settings.multi_objective:
            instead = ", and TPE chooses, since the sampler gp models one" if self.settings.sampler == "gp" else ""
            note(f"Two objectives: no trial is pruned{instead}.")
        if self.settings.workers > 1:
            shared = self._shared(objective)
            self._watch_workers(left)
        else:
            with progress_bar("trials", left * len(objective.questions)) as advance:
                shared = self._shared(objective, advance)
                shared.run()
        if len(storage.finished(self.study)) < self.settings.trials and shared.enough():
            note(
                f"The next trial is expected to gain {self.study.sampler.expected_gain(self.study):.2%}, less than "
                f"--min-gain {self.settings.min_gain:.2%}: the study ends here."
            )

    def _shared(self, objective: Objective, progress: Callable[[], None] = lambda: None) -> TrialQueue:
        """The study's trials as this process takes part in them. `progress` is called after each question."""

        def prepare_sampler() -> None:
            self.study.sampler = self._sampler(objective.prior)

        def enough() -> bool:
            if not self.settings.min_gain:
                return False
            prepare_sampler()
            return self.study.sampler.expected_gain(self.study) < self.settings.min_gain

        measure = partial(objective, progress=progress)
        return TrialQueue(self.opened, self.settings.trials, measure, enough, prepare_sampler, self._tell)

    def _watch_workers(self, left: int) -> None:
        """Let worker processes do the trials, and tell what they finish.

        Raises:
            WorkersFailed: all of them ended, and trials were left.
        """
        told = {trial.number for trial in storage.finished(self.study)}

        def look() -> None:
            for trial in storage.finished(self.study):
                if trial.number not in told:
                    told.add(trial.number)
                    self._tell(trial)
                    advance()

        try:
            with progress_bar("trials", left) as advance:
                codes = run_workers(
                    _work,
                    (self.settings, self.given, self.opened.database.heartbeat_interval),
                    self.settings.workers,
                    look,
                )
        except KeyboardInterrupt:
            for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if worker_of(trial).startswith(_worker_name("")):
                    self.study.tell(trial.number, state=TrialState.FAIL)
            raise
        if codes:
            shown = ", ".join(map(str, codes))
            sentence = f"{len(codes)} of {self.settings.workers} workers failed (exit codes {shown})"
            if len(storage.finished(self.study)) < self.settings.trials and len(codes) == self.settings.workers:
                raise WorkersFailed(f"{sentence}.")
            note(f"{sentence}; the others did their trials.")

    def _tell(self, trial: FrozenTrial) -> None:
        for row in trial_table.rows([trial], self.family.tier_names):
            note(
                f"trial {row['trial']}: {row['config']}: {row['measured']} x ar ({row['low']} to {row['high']}), "
                f"predicted {row['predicted']}"
            )

    def _rerun(self, bench: Bench, questions: Sequence[Question]) -> Rerun | None:
        """Time the best trials again, and the best of these on questions that chose nothing."""
        finalists = trial_table.best_first(storage.finished(self.study))[:FINALISTS]
        if not finalists:
            return None
        others = self._other_targets()
        with progress_bar("target's answers to fresh questions", len(self.fresh)) as advance:
            fresh = ask(bench, self.fresh, progress=advance)
        choice, stated, is_fresh = split_fresh(fresh, questions)
        if not is_fresh:
            note(
                f"The task has too few questions to measure the result on fresh ones: {len(self.fresh)} left, at least 2 "
                f"needed (best {STATED_QUESTIONS + CHOICE_QUESTIONS}). Its speeds are those of the questions that chose "
                "the config and may be too high; give more with --data, or fewer --questions."
            )
        with progress_bar("rerun", len(stated) + len(choice) * (len(finalists) > 1)) as advance:
            return rerun_best(bench, choice, stated, finalists, is_fresh, advance, others)

    def _other_targets(self) -> dict[str, Bench]:
        """The family's other targets, by name, to be timed beside the finalists."""
        if self.given is not None or self.settings.clock != "wall":
            return {}
        name, tokens = self.settings.family, self.settings.max_new_tokens
        pyramids = {
            target: AdaptivePyramid(families.load(name, target=target), control="fixed")
            for target in families.other_targets(name, self.settings.target)
        }
        return {target: Bench(pyramid, self.bench.method, tokens) for target, pyramid in pyramids.items()}

    def _write(self, objective: Objective, rerun: Rerun | None) -> Profile | None:
        """Print and write the table, and the profile of the best trial; None if no trial is usable."""
        trials = storage.finished(self.study)
        best = trial_table.best_first(trials)
        table = trial_table.rows(trials, self.family.tier_names)
        title = (
            f"{self.task.label}, {self.family.name}, method {self.bench.method.name}: tokens/s over target-only "
            "decoding"
        )
        if not best:
            note("No trial was measured to its end within the limits, so no profile was written.")
            return None
        trial = best[0] if rerun is None else rerun.winner
        errors = {name: trial_table.median_error(trials, f"{name}_ratio") for name in ("predicted", "formula")}
        provenance = {
            "name": self.study.study_name,
            **self.study.user_attrs["settings"],
            "label": self.task.label,
            "trials": len(trials),
            "sampler": self.settings.sampler,
            "best_trial": trial.number,
            "best_trial_ratio": TrialRecord.of(trial).speed.ratio,
            "remeasured": rerun is not None,
            "median_error_replay": errors["predicted"],
            "median_error_formula": errors["formula"],
            "workers": trial_table.measured_by(trials),
            "threads": torch.get_num_threads(),
        }
        profile = make_profile(
            self.task.name,
            self.family,
            self.bench,
            objective.prior,
            trial,
            rerun,
            ScoreSummary.of(objective.ar_score),
            provenance,
        )
        profile.save(self.out)
        trial_table.write_csv(self.out.with_suffix(".csv"), table)
        notes = trial_table.summary(profile, errors, self.steps.rows)
        what_if = self.settings.what_if()
        if what_if is not None:
            title += f", {what_if.label}"
            notes.insert(0, f"All speeds: {what_if.label}")
        trial_table.write_markdown(self.out.with_suffix(".md"), title, table, notes)
        trial_table.print_table(title, table)
        print(*notes, f"wrote {self.out}, {self.out.with_suffix('.csv')}, {self.out.with_suffix('.md')}", sep="\n")
        return profile


def _worker_name(number: int | str) -> str:
    return f"{platform.node()}, worker {number}"


def _work(settings: Settings, family: families.Family | None, heartbeat: int, number: int) -> None:
    """A worker process. Its parent speaks for it, and says how often it shows that it is alive."""
    silence()
    prepare(settings, choose_examples(settings), family, heartbeat).work(number)


def _record(
    settings: Settings, task: Task, measured: Sequence[Example], family: families.Family, bench: Bench, limits: Limits
) -> dict[str, Any]:
    """What must not change when a study is resumed."""
    here, what_if = bench.pyramid.description(), settings.what_if()
    return {
        "task": task.name,
        "family": family.name,
        "target": settings.target,
        "tiers": here["tiers"],
        "method": bench.method.name,
        "seed": settings.seed,
        "questions": settings.questions,
        "questions_sha256": questions_digest(measured),
        "max_new_tokens": settings.max_new_tokens,
        "dtype": here["dtype"],
        "device": here["device"],
        "limits": asdict(limits),
        "clock": settings.clock,
        "multi_objective": settings.multi_objective,
        "costs": None if what_if is None else what_if.to_dict(),
        "versions": {
            "adaptive_pyramid": adaptive_pyramid.__version__,
            "optuna": optuna.__version__,
            **here["versions"],
        },
    }


def _open(url: str, name: str, record: dict[str, Any], objectives: int, heartbeat: int) -> storage.OpenStudy:
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its traceback of a trial cut short by Ctrl-C is no news
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=0.05, n_startup_steps=MIN_QUESTIONS)
        return storage.open_study(url, name, record, pruner, objectives, heartbeat)
