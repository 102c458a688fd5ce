"""The control laboratory runs, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    from benchmarks import control_lab

    return control_lab


def test_lab_prints_and_writes(
    lab, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls = ["planner", "own blocks only", "thompson", "hf heuristic"]
    monkeypatch.setattr(lab, "TOKENS", 60)
    lab.main(
        ["--seeds", "1", "--environments", "good draft", "repetitive", "--controls", *controls, "--out", str(tmp_path)]
    )
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*controls, "good draft", "repetitive", "all environments"))
    report = json.loads((tmp_path / "control_lab.json").read_text())
    assert set(report) == {"good draft", "repetitive"} and set(report["good draft"]) == set(controls)
    assert all(0.2 < row["of_best"] < 1.2 for rows in report.values() for row in rows.values())


def test_settled_after(lab) -> None:
    good, bad = lab.default_config(3), lab.default_config(3).with_route((2,))
    speeds = {good: 2.0, bad: 1.0}
    assert lab.settled_after([bad] * 7 + [good] * 60, speeds) == 2  # five of fifty may be others
    assert lab.settled_after([bad] * 30, speeds) == 30


def test_bad_options(lab) -> None:
    with pytest.raises(SystemExit):
        lab.main(["--environments", "nowhere"])
    with pytest.raises(SystemExit):
        lab.main(["--seeds", "0"])


def test_speed_benchmark_runs(lab, capsys: pytest.CaptureFixture) -> None:
    from benchmarks import control_speed

    control_speed.main(["--blocks", "20"])
    assert "planner" in capsys.readouterr().out
