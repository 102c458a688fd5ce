"""The page of findings: its numbers come from the traces, and every picture that it names is there."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from adaptive_pyramid.config import PyramidConfig  # noqa: E402
from adaptive_pyramid.decoding.method import METHODS  # noqa: E402
from tests.recorded import synthetic  # noqa: E402
from tuning import findings  # noqa: E402
from tuning.replay.acceptance_model import fitting  # noqa: E402
from tuning.replay.engine import Replay  # noqa: E402
from tuning.replay.what_if_costs import load_costs  # noqa: E402
from tuning.research import trace_statistics  # noqa: E402
from tuning.research.findings_page import (  # noqa: E402
    LENGTHS,
    Page,
    grid,
    write_page,
)
from tuning.traces.format import DIVERGENCES, TraceSet  # noqa: E402


@pytest.fixture(scope="module")
def traces() -> TraceSet:
    made = synthetic(10, tiers=3, n=60)
    for index, trace in enumerate(made):
        object.__setattr__(trace, "task", "even" if index % 2 == 0 else "odd")
    return made


def test_the_page_says_what_replay_says(traces, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tuning.research.findings_page.LENGTHS", (1, 4, 9))
    path = write_page(traces, tmp_path, load_costs("gpu-24gb"))
    text = path.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(pictures) == 6 and all((tmp_path / name).stat().st_size > 5000 for name in pictures)
    assert (
        "| even |  | 5 | 300 |" in text
        and "modelled and not measured" in text
        and "None" not in text
        and "nan" not in text
    )
    configs = grid(traces)
    replay = Replay(traces, acceptance=fitting(traces, METHODS["pyramid"]))
    best = max(configs, key=lambda config: replay.play(config).ratio_to_ar)
    row = re.search(r"\| all \| (.+?) \| ([\d.]+) \|", text)
    assert row[1] == best.label and float(row[2]) == pytest.approx(replay.play(best).ratio_to_ar, abs=0.006)
    means = [np.mean([trace.entropy[tier].mean() for trace in traces]) for tier in range(3)]
    assert all(f"tier{tier} {mean:.3f}" in text for tier, mean in enumerate(means))
    assert ("The mean falls" in text or "mean falls" in text) == (means[0] > means[1] > means[2])


@pytest.mark.parametrize("tiers, routes", [(2, 0), (3, 1), (4, 3)])
def test_every_route_with_two_lengths_is_mapped(tiers, routes, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tuning.research.findings_page.MAP_LENGTHS", (1, 5))
    page = Page(synthetic(4, tiers=tiers, n=30), tmp_path)
    page.lengths()
    text = "\n".join(page.parts)
    rows = re.findall(r"^\| (tier\d > tier\d > tier\d) \|.*\| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len({route for route, _, _ in rows}) == routes and all(
        float(best) >= float(worst) for _, best, worst in rows
    )
    assert (tmp_path / "findings-lengths.png").exists() == (routes > 0)


def test_what_is_missing_is_recorded_task_by_task(tmp_path, monkeypatch) -> None:
    """Also where an interrupted recording left a file."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def record(arguments):
        calls.append(arguments)
        synthetic(4, tiers=2, n=20).save(tmp_path / "findings.npz")
        return 0

    monkeypatch.setattr(findings.recorder, "main", record)
    monkeypatch.setattr("tuning.research.findings_page.LENGTHS", (1, 4))
    for _ in range(2):
        assert findings.main(["--out", str(tmp_path), "--data", "d"]) == 0
    assert [arguments[1] for arguments in calls] == [*findings.TASKS, *findings.TASKS]
    assert all(f"d/{arguments[1]}.jsonl" in arguments for arguments in calls)
    monkeypatch.setattr(findings.recorder, "main", lambda arguments: 130)
    assert findings.main(["--out", str(tmp_path)]) == 130


def test_the_grid_has_every_route_and_length(traces) -> None:
    configs = grid(traces)
    n = len(LENGTHS)
    assert len(configs) == len(set(configs)) == 1 + 2 * n + n * n  # target; two pairs; all three
    assert len(configs) > 200 and PyramidConfig.simple([1, 1], route=(2,)) in configs


def test_patterns_count_positions(traces) -> None:
    agreed = np.concatenate([trace.top[0] == trace.ids for trace in traces])
    shares = trace_statistics.by_position(traces, 0, 2)
    assert sum(share.n for share in shares) == traces.tokens
    assert sum(share.n * share.value for share in shares) == pytest.approx(agreed.sum())
    assert shares[0].label == "0 to 8" and shares[0].n == 80 and shares[-1].label == "32 to 64"
    by_entropy = trace_statistics.by_entropy(traces, 0, 2)
    assert by_entropy[0].value > by_entropy[-1].value  # the synthetic draft is right where it is sure
    points = trace_statistics.by_tau(traces, 0, 2, "logit_gap")
    assert points[0].acceptance == pytest.approx(agreed.mean()) and points[0].regret == 0
    assert all(a.acceptance <= b.acceptance and a.regret <= b.regret for a, b in zip(points, points[1:]))
    pair = traces.pair(0, 2)
    gap = np.concatenate([trace.divergence[DIVERGENCES.index("logit_gap"), pair] for trace in traces])
    assert points[-1].acceptance == pytest.approx((agreed | (gap <= points[-1].tau)).mean())


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--out", "nowhere"], "--out must be a directory that exists"),
        (["--cost-rows", "1b"], "--cost-rows belongs to --costs"),
        (["--costs", "gpu"], "unknown cost table 'gpu'"),
        (["--traces", "none.npz"], "no traces at none.npz"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, arguments, sentence) -> None:
    with pytest.raises(SystemExit) as stopped:
        findings.main(["--out", str(tmp_path), *arguments])
    assert stopped.value.code == 2 and sentence in " ".join(capsys.readouterr().err.split())


def test_the_command_reads_a_file(traces, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tuning.research.findings_page.LENGTHS", (1, 4))
    traces.save(tmp_path / "traces.npz")
    assert findings.main(["--traces", str(tmp_path / "traces.npz"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "findings.md").read_text(encoding="utf-8").startswith("# First findings")
