"""The trials of a study shared by any number of workers: as many as asked for, and none lost with its worker."""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import text

from tuning.study import storage
from tuning.study.interrupts import DeferredInterrupt
from tuning.study.storage import OpenStudy
from tuning.terminal.progress import note

Values = float | tuple[float, ...]


class _Next(enum.Enum):
    MEASURE = enum.auto()
    WAIT = enum.auto()  # for trials of other workers: one that dies leaves its trial to be done again
    END = enum.auto()


@dataclass
class TrialQueue:
    """What one worker does until the study is full.

    Claims are made one at a time, under the study's lock: whoever holds it counts what is finished or running, asks for
    a trial only if that is fewer than `total`, and keeps the lock until the trial's parameters are stored. So no trial
    is run that nobody asked for, and no sampler chooses what another worker has just begun.

    Ctrl-C is held back, except where the objective lets it in.

    Args:
        total: finished trials to end with.
        objective: measures a trial; it must call its second argument as soon as the trial's parameters are stored, and
            do what takes long within the context that its third argument, `ctrl_c.let_in`, returns.
        enough: asked when nothing is queued; True ends the study early.
        prepare_sampler: called before every claim, for samplers that need another seed each time.
        told: called with every trial that this worker finished.
    """

    opened: OpenStudy
    total: int
    objective: Callable[[optuna.Trial, Callable[[], None], Callable[[], AbstractContextManager]], Values]
    enough: Callable[[], bool] = lambda: False
    prepare_sampler: Callable[[], None] = lambda: None
    told: Callable[[FrozenTrial], None] = lambda trial: None
    _current: int | None = field(default=None, init=False)  # number of the trial that this worker has claimed last

    def __post_init__(self) -> None:
        self.study, self._database, self._lock = self.opened
        self.ctrl_c = DeferredInterrupt()

    def run(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Claim and measure until the study is full, or until `go_on` says no."""
        has_waited = False
        while go_on():
            self._lock.acquire()
            try:
                with self.ctrl_c:
                    following = self._next()
                    if following is _Next.MEASURE:
                        self._measure()  # gives the lock back as soon as the trial is claimed
            finally:
                self._lock.release()
            if following is _Next.END:
                return
            if following is _Next.WAIT:
                if not has_waited:
                    note("Waiting for trials of other workers.")
                has_waited = True
                time.sleep(self._database.heartbeat_interval / 10)

    def _next(self) -> _Next:
        self._give_up_on_the_dead()
        trials = self.study.get_trials(deepcopy=False)
        states = [trial.state for trial in trials]
        running, waiting = states.count(TrialState.RUNNING), states.count(TrialState.WAITING)
        done = sum(state in storage.FINISHED for state in states)
        if done + running < self.total and (waiting or not self.enough()):
            return _Next.MEASURE
        return _Next.WAIT if running else _Next.END

    def _measure(self) -> None:
        failed_itself = False

        def measure(trial: optuna.Trial) -> Values:
            nonlocal failed_itself
            self._current = trial.number
            try:
                return self.objective(trial, lambda: self._claimed(trial.number), self.ctrl_c.let_in)
            except UpdateFinishedTrialError:
                raise
            except BaseException:
                failed_itself = True
                raise

        self._current = None
        self.prepare_sampler()
        try:
            self.study.optimize(measure, n_trials=1)
        except Exception:
            # A worker that was suspended for long comes back to a trial that others gave up on. Optuna refuses its
            # result: with UpdateFinishedTrialError, ValueError or AssertionError, depending on where it notices.
            if failed_itself or self._current is None or self._state(self._current) != TrialState.FAIL:
                raise
            note(f"Trial {self._current} took no sign of life for too long and was given to another worker.")
            return
        self.told(self.study.get_trials(deepcopy=False)[self._current])

    def _claimed(self, number: int) -> None:
        """Others may claim from here on, and will find this trial alive."""
        while number not in self._with_heartbeat():  # the first one comes from a thread that has just started
            time.sleep(0.01)
        self._lock.release()

    def _state(self, number: int) -> TrialState:
        return self.study.get_trials(deepcopy=False)[number].state

    def _give_up_on_the_dead(self) -> None:
        """Fail the trials of workers that died, and queue them again, each at most `storage.MAX_RETRIES` times."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self.study)
            # Optuna never misses a heartbeat that has not begun. Claims hold the lock until it has, and the lock is
            # here: such a trial's worker died between the two.
            for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
                if trial.number not in self._with_heartbeat():
                    self.study.tell(trial.number, state=TrialState.FAIL)
                    RetryHeartbeatStaleTrialCallback(max_retry=storage.MAX_RETRIES)(self.study, trial)

    def _with_heartbeat(self) -> set[int]:
        """Numbers of the trials that have had one. Optuna has no function for it."""
        query = text(
            "SELECT number FROM trials JOIN trial_heartbeats USING (trial_id) JOIN studies USING (study_id) "
            "WHERE study_name = :name"
        )
        with self._database.engine.connect() as connection:
            return set(connection.execute(query, {"name": self.study.study_name}).scalars())
