"""The control laboratory runs, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("COLUMNS", "120")
    import control_lab

    return control_lab


def test_lab_prints_and_writes(lab, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = ["planner", "own blocks only", "thompson", "hf heuristic"]
    monkeypatch.setattr(lab, "TOKENS", 60)
    lab.main(["--seeds", "1", "--plants", "good draft", "repetitive", "--controls", *controls, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*controls, "good draft", "repetitive", "all plants"))
    report = json.loads((tmp_path / "control_lab.json").read_text())
    assert set(report) == {"good draft", "repetitive"} and set(report["good draft"]) == set(controls)
    assert all(0.2 < row["of_best"] < 1.2 for rows in report.values() for row in rows.values())


def test_recorded_texts(lab, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Tier 0 looks up and finds what comes; tier 1 errs at every fourth position; tier 2 is the target."""
    n = 80
    text = list(range(100, 100 + n))
    draft = [token if i % 4 else 7 for i, token in enumerate(text)]
    trace = {"prompt_length": 10, "text": text, "best": {"1": draft, "2": text}, "found": {"0": [text[i : i + 24] for i in range(n)]},
             "regret": {"1": [[[b, 0.0]] for b in draft], "2": [[[t, 0.0], [b, 0.0 if b == t else 2.0]] for t, b in zip(text, draft)]}}
    costs = {"1": {"1": 0.01, "8": 0.01}, "2": {"1": 0.04, "8": 0.04}}
    path = tmp_path / "traces.json"
    path.write_text(json.dumps({"costs": costs, "overhead": 0.0, "kinds": ["a", "b"], "traces": [trace, trace]}))
    cases = lab.recorded(path)
    assert set(cases) == {"a", "b", "mixed"} and cases["mixed"].requests(0) == [(10, n), (10, n)]
    config = lab.PyramidConfig.simple([1, 4], route=(1, 2))
    outcome = lab.play(cases["a"], lab.FixedController(config), seed=0)
    assert outcome.tokens == n and len(outcome.configs) == pytest.approx(n / 4, abs=1)
    looked_up = lab.play(cases["a"], lab.FixedController(config.with_route((0, 2))), seed=0)
    assert len(looked_up.configs) == n / 5
    lab.main(["--seeds", "1", "--recorded", str(path), "--controls", "planner"])
    assert "mixed" in capsys.readouterr().out


def test_settled_after(lab) -> None:
    good, bad = lab.default_config(3), lab.default_config(3).with_route((2,))
    speeds = {good: 2.0, bad: 1.0}
    assert lab.settled_after([bad] * 7 + [good] * 60, speeds) == 2    # five of fifty may be others
    assert lab.settled_after([bad] * 30, speeds) == 30


def test_bad_options(lab) -> None:
    with pytest.raises(SystemExit):
        lab.main(["--plants", "nowhere"])
    with pytest.raises(SystemExit):
        lab.main(["--seeds", "0"])


def test_speed_benchmark_runs(lab, capsys: pytest.CaptureFixture) -> None:
    import control_speed

    control_speed.main(["--blocks", "20"])
    assert "planner" in capsys.readouterr().out
