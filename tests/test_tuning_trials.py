"""Trials shared by workers, on SQLite and on a real PostgreSQL server: claims, dead workers, suspended workers, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.toy_worker import DEADLY, QUEUED, open_toy
from tuning.study import storage
from tuning.study.locks import Lock
from tuning.study.trial_queue import TrialQueue

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'study.db'}"
        return
    server = request.getfixturevalue("postgresql")
    yield server
    optuna.delete_study(study_name="toy", storage=storage.checked_url(server))


def toy_workers(url: str, total: int, folder: Path, workers: int) -> tuple[list[optuna.trial.FrozenTrial], list[int]]:
    """Run workers side by side to the end; -> (the study's trials, exit codes)."""
    command = [sys.executable, "-m", "tests.toy_worker", url, str(total), str(folder), str(workers)]
    running = [subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) for _ in range(workers)]
    errors = [process.communicate()[1] for process in running]
    assert not any("Traceback" in error for error in errors), "\n".join(errors)
    return open_toy(url).study.trials, [process.returncode for process in running]


def measured(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("measured-*"))


def _objective(trial, claimed, *_) -> float:
    value = trial.suggest_int("x", 0, 10**9)
    claimed()
    return float(value)


def test_workers_that_start_together_do_what_was_asked_for_and_no_more(url, tmp_path) -> None:
    trials, codes = toy_workers(url, 14, tmp_path, workers=4)
    assert codes == [0] * 4
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(complete) == 14 and not [
        trial for trial in trials if trial.state in (TrialState.RUNNING, TrialState.WAITING)
    ]
    values = sorted(int(trial.value) for trial in complete)
    assert values[:QUEUED] == list(range(QUEUED))  # each queued trial once
    assert set(values) <= set(measured(tmp_path))
    assert len({path.name.rsplit("-", 1)[1] for path in tmp_path.glob("measured-*")}) > 1  # not all by one worker


def test_nobody_claims_between_anothers_count_and_its_claim(url) -> None:
    other = threading.Thread(target=TrialQueue(open_toy(url), 1, _objective).run)

    def let_the_other_try() -> None:
        if other.ident is None:
            other.start()
            other.join(timeout=0.5)  # long enough for one that no lock holds back

    opened = open_toy(url)
    TrialQueue(opened, 1, _objective, prepare_sampler=let_the_other_try).run()
    other.join()
    assert [trial.state for trial in opened.study.trials] == [TrialState.COMPLETE]


def test_killed_workers_lose_nothing_and_kill_no_more_than_three(url, tmp_path) -> None:
    (tmp_path / "once").touch()
    (tmp_path / "deadly").touch()
    trials, codes = toy_workers(url, 9, tmp_path, workers=5)
    assert sorted(codes) == [-signal.SIGKILL] * 4 + [0]
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(complete) == 9 and not [
        trial for trial in trials if trial.state in (TrialState.RUNNING, TrialState.WAITING)
    ]
    values = {int(trial.value) for trial in complete}
    assert set(range(QUEUED)) - {DEADLY} <= values and DEADLY not in values  # ONCE was done by another worker
    assert len([trial for trial in trials if trial.params == {"x": DEADLY}]) == 1 + storage.MAX_RETRIES
    assert all(trial.state == TrialState.FAIL for trial in trials if trial.params == {"x": DEADLY})
    # What killed three workers is not queued again by the next one that starts either.
    assert storage.requeue_interrupted(open_toy(url).study) == 0


def test_a_worker_that_died_before_its_first_heartbeat_is_noticed(url) -> None:
    opened = open_toy(url)
    opened.study.enqueue_trial({"x": 5})
    with pytest.warns(UserWarning, match="Heartbeat of storage is supposed to be used with Study.optimize"):
        opened.study.ask()  # running, and nobody will ever say that it lives
    TrialQueue(opened, 2, _objective).run()
    trials = opened.study.trials
    assert [trial.state for trial in trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    assert trials[1].params == {"x": 5}


@pytest.mark.parametrize("notices", ["while measuring", "at the end"])
def test_a_suspended_worker_drops_what_others_gave_up_on(url, capsys, notices) -> None:
    opened = open_toy(url)
    suspended = []

    def objective(trial, claimed, *_) -> float:
        value = _objective(trial, claimed)
        if not suspended:
            suspended.append(trial.number)
            open_toy(url).study.tell(trial.number, state=TrialState.FAIL)
            if notices == "while measuring":
                trial.report(1.0, 0)
        return value

    TrialQueue(opened, 3, objective).run()
    states = [trial.state for trial in opened.study.trials]
    assert states == [TrialState.FAIL] + [TrialState.COMPLETE] * 3
    assert "Trial 0 took no sign of life for too long" in capsys.readouterr().err


def test_a_real_error_ends_the_worker(url) -> None:
    def objective(trial, claimed, *_) -> float:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        TrialQueue(open_toy(url), 3, objective).run()
    other = Lock(storage.checked_url(url), "toy")
    other.acquire(waiting=lambda: pytest.fail("the lock was kept"))
    other.release()


def test_enough_ends_a_study_but_not_its_queue(url) -> None:
    opened = open_toy(url)
    for value in (1, 2):
        opened.study.enqueue_trial({"x": value})
    TrialQueue(opened, 9, _objective, enough=lambda: True).run()
    assert [trial.params["x"] for trial in opened.study.trials] == [1, 2]


HOLDER = """
import sys, time
from tuning.study.locks import Lock
lock = Lock(sys.argv[1], "toy")
lock.acquire()
print("held", flush=True)
time.sleep(10_000)
"""


def test_a_lock_is_free_when_its_holder_was_killed(url) -> None:
    url = storage.checked_url(url)
    open_toy(url)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, url], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    asked = []
    lock = Lock(url, "toy")
    lock.acquire(waiting=lambda: asked.append(holder.kill()))
    lock.release()
    assert asked and holder.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "url, expected",
    [
        ("journal:///study", "journal storage has no heartbeat"),
        ("study.log", "journal storage has no heartbeat"),
        ("mysql://someone@somewhere/x", "expected a database URL"),
        ("study.db", "expected a database URL"),
    ],
)
def test_storages_that_workers_cannot_share(url, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        storage.checked_url(url)


@pytest.mark.parametrize(
    "name", ["a b", "a%20b", "what?", "what?x=1", "a#b", "{SCHEMA_VERSION}", "{}", "a+b&c=d", "é:@~%"]
)
def test_the_default_storage_lies_beside_the_profile_whatever_the_path(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(name), tmp_path / "deep" / name):
        folder.mkdir(parents=True)
        url = storage.default_storage(folder / f"{name}.yaml")
        opened = storage.open_study(url, "x", {"seed": 0}, optuna.pruners.NopPruner())
        with opened.lock:
            assert {file.name for file in folder.iterdir()} == {f"{name}.db", f"{name}.db.lock"}
        assert optuna.load_study(study_name="x", storage=url).user_attrs == {"settings": {"seed": 0}}
        assert storage.checked_url(url) == url
    assert {file.name for file in tmp_path.iterdir()} == {name, "deep"}


def test_several_workers_cannot_share_one_process_s_memory() -> None:
    assert storage.checked_url("sqlite://") == "sqlite://"
    with pytest.raises(ValueError, match="--workers 2 cannot share sqlite://"):
        storage.checked_url("sqlite://", workers=2)


def test_urls_get_their_driver_and_lose_their_password_when_shown() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        url = storage.checked_url(f"{scheme}://me:secret@host/studies")
        assert url == "postgresql+psycopg://me:secret@host/studies"
        assert storage.shown(url) == "postgresql+psycopg://me:***@host/studies"
