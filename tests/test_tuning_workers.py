"""Searches by several worker processes and machines, from end to end on tiny models."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from adaptive_pyramid import Profile
from tests.tiny_search import deadly_family, search, tiny_family
from tuning import search as command
from tuning.study import storage

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}


def trials_of(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=storage.checked_url(url)).trials


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_killed_worker_costs_no_trial(tmp_path, request, capsys, database) -> None:
    url = f"sqlite:///{tmp_path / 'w.db'}" if database == "sqlite" else request.getfixturevalue("postgresql")
    marker = tmp_path / "marker"
    marker.touch()
    outcome = search(
        tmp_path / "w.yaml", 6, family=deadly_family(marker), heartbeat=1, workers=2, clock="model", storage=url
    )
    assert not marker.exists() and not outcome.interrupted
    trials = trials_of(url, "w")
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    killed = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert len(done) == 6 and len(killed) == 1 and len(trials) == 7
    retries = [trial for trial in done if trial.system_attrs.get("retry_history") == [killed[0].number]]
    assert len(retries) == 1 and retries[0].params == killed[0].params
    assert len({tuple(trial.params.items()) for trial in done}) == 6  # nobody did another's work again

    told = capsys.readouterr().err
    assert "1 of 2 workers failed (exit codes -9)" in told and told.count("x ar (") == 6
    workers = Profile.load(outcome.out).study["workers"]
    assert set(workers) <= {f"{platform.node()}, worker {number}" for number in (1, 2)}
    assert sorted(number for numbers in workers.values() for number in numbers) == [trial.number for trial in done]
    assert outcome.profile.study["remeasured"]  # by the parent, after all of them


def test_ctrl_c_ends_all_workers_and_keeps_everything(tmp_path, ctrl_c_works) -> None:
    out = tmp_path / "stopped.yaml"
    line = [sys.executable, "-m", "tests.tiny_search", str(out), "40", "pyramid", "2"]
    process = subprocess.Popen(
        line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for told in process.stderr:
        if told.startswith("trial "):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers alike
            break
    rest = process.stderr.read()  # ends only when every worker has ended, too
    assert process.wait() == 130, rest
    assert "Traceback" not in rest and "the same command goes on" in rest
    trials = trials_of(f"sqlite:///{out.with_suffix('.db')}", "stopped")
    done = [trial.number for trial in trials if trial.state == TrialState.COMPLETE]
    assert 1 <= len(done) < 40 and Profile.load(out).study["trials"] == len(done)


def test_machines_share_a_study(tmp_path, monkeypatch, capsys) -> None:
    family = tiny_family()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    here, there = (tmp_path / name / "m.yaml" for name in ("here", "there"))
    for out in (here, there):
        out.parent.mkdir()
    search(here, trials=2, family=family, storage=url, questions=1)
    assert "not advised" not in capsys.readouterr().err
    monkeypatch.setattr("tuning.study.runner.platform.node", lambda: "another")
    outcome = search(there, trials=3, family=family, storage=url, questions=1)
    assert outcome.profile.study["workers"] == {"another": [2], platform.uname().node: [0, 1]}
    assert "Several machines share this study in an SQLite file. That is not advised" in capsys.readouterr().err


def test_workers_that_all_die_leave_a_study_to_go_on_with(tmp_path, capsys) -> None:
    family = deadly_family(tmp_path)  # a directory kills everybody
    outcome = search(tmp_path / "f.yaml", trials=2, family=family, workers=2, clock="model")
    assert outcome.interrupted and outcome.profile is None
    assert "2 of 2 workers failed (exit codes -9, -9)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--workers", "2"], "--workers 2 needs --clock model: two workers cannot time honestly on one machine"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--workers", "2", "--clock", "model", "--storage", "journal.log"], "journal storage has no heartbeat"),
        (["--workers", "2", "--clock", "model", "--storage", "sqlite://"], "lives in the memory of one process"),
        (
            ["--storage", "postgresql://nobody@127.0.0.1:1/none"],
            "cannot open the storage 'postgresql+psycopg://nobody@127.0.0.1:1/none'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, expected) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adaptive_pyramid.models.families.load", lambda name, target: tiny_family())
    with pytest.raises(SystemExit) as end:
        command.main(["--task", "csqa", *arguments])
    assert end.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1 and expected in lines[0]
