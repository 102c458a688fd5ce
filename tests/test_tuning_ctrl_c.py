"""Ctrl-C comes where it can do no harm, and nowhere else."""

from __future__ import annotations

import signal
import threading

import optuna
import pytest
from optuna.storages._heartbeat import HeartbeatThread
from optuna.trial import TrialState

from tests.toy_worker import open_toy
from tuning.study.interrupts import DeferredInterrupt
from tuning.study.trial_queue import TrialQueue

pytestmark = pytest.mark.usefixtures("ctrl_c_works")


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_held_back_until_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt):
        with DeferredInterrupt() as ctrl_c:
            press()
            reached = True
    assert reached and ctrl_c.pressed and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_at_once_where_it_is_let_in_and_only_once() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with DeferredInterrupt() as ctrl_c:
            with ctrl_c.let_in():
                try:
                    press()
                    steps.append("not reached")
                finally:
                    press()  # impatience must not interrupt what cleans up
                    steps.append("cleaned up")
    assert steps == ["cleaned up"]


def test_one_from_before_comes_as_soon_as_it_is_let_in() -> None:
    with DeferredInterrupt() as ctrl_c:
        press()
        with pytest.raises(KeyboardInterrupt):
            with ctrl_c.let_in():
                pytest.fail("let_in begins with what was held back")
        ctrl_c.pressed = False


def test_who_ignores_it_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with DeferredInterrupt() as ctrl_c:
            press()
        assert not ctrl_c.pressed and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("moment", ["heartbeat starts", "transaction", "measuring"])
def test_no_moment_leaves_a_thread_or_a_trial_behind(tmp_path, monkeypatch, moment) -> None:
    start = HeartbeatThread.start

    def start_and_press(self) -> None:
        start(self)
        press()

    if moment == "heartbeat starts":
        monkeypatch.setattr(HeartbeatThread, "start", start_and_press)
    opened = open_toy(f"sqlite:///{tmp_path / 'study.db'}")
    threads = set(threading.enumerate())

    def objective(trial: optuna.Trial, claimed, let_in) -> float:
        value = trial.suggest_int("x", 0, 9)
        claimed()
        if moment == "transaction":
            press()  # held back: nothing here is let in
        with let_in():
            if moment == "measuring":
                press()
            pytest.fail("Ctrl-C was lost")
        return float(value)

    shared = TrialQueue(opened, 3, objective)
    with pytest.raises(KeyboardInterrupt):
        shared.run()
    assert set(threading.enumerate()) <= threads
    assert [trial.state for trial in opened.study.trials] == [TrialState.FAIL]
    assert not opened.lock._file.is_locked
