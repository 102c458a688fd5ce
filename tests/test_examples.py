"""What the README, the examples and the benchmarks show runs, here on tiny models saved to disk."""

from __future__ import annotations

import dataclasses
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml

import adaptive_pyramid
from adaptive_pyramid import AdaptivePyramid, PyramidConfig
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.profile import Profile
from tests.recorded import synthetic
from tests.tiny import graded_family, tiny_tokenizer
from tuning.traces.format import TraceSet

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A draft and a target on disk, a family of a lookup and both, and a profile of it."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in zip(
        ("draft", "target"), graded_family("llama", 2, dtype=torch.float32, max_position_embeddings=512)
    ):
        model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    tiers = [{"name": "lookup", "lookup": True}, *({"name": name, "repo": name} for name in ("draft", "target"))]
    (folder / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "tiers": tiers}))
    Profile(
        "any", str(folder / "mine.yaml"), ("lookup", "draft", "target"), "pyramid", PyramidConfig.simple([2, 4])
    ).save(folder / "csqa.yaml")
    return folder


@pytest.fixture
def run_example(monkeypatch, capsys):
    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        if name.endswith(".py"):
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        else:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        return capsys.readouterr().out

    return run


def test_blocks_by_hand(folder, run_example):
    out = run_example("by_hand.py", "--family", folder / "mine.yaml", "--tokens", 20)
    lines = re.findall(r"0>1>2 l=(\d+),(\d+)  (\d+) tokens  drafted by tier \((.*)\)", out)
    assert (
        sum(int(tokens) for *_, tokens, _ in lines) <= 20
        and len({lengths for *lengths, _, _ in map(list, lines) for lengths in [tuple(lengths)]}) > 1
    )


def test_quickstart(folder, run_example):
    out = run_example("quickstart.py", "--family", folder / "mine.yaml", "--tokens", 12)
    assert "tokens/s" in out and re.search(r"^ *block ", out, flags=re.M)


def test_own_models(folder, run_example):
    out = run_example("own_models.py", folder / "draft", folder / "target", "--tokens", 12)
    assert "same ids as the target alone: True" in out


def test_one_model(folder, run_example):
    out = run_example("one_model.py", folder / "target", "--tokens", 12)
    assert "same ids: True" in out and "the model alone: " in out


def test_own_task(folder, tmp_path, run_example):
    sizes = ("--trials", 2, "--questions", 2, "--tokens", 4)
    out = run_example("own_task.py", tmp_path / "new", "--family", folder / "mine.yaml", *sizes)
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"capitals.yaml", "capitals.jsonl", "profile.yaml", "profile.html"} <= written and "tokens/s" in out


def test_own_policy(folder, run_example):
    out = run_example("own_policy.py", "--family", folder / "mine.yaml", "--tokens", 40)
    assert re.search(r"^ +\d+ blocks  \S", out, flags=re.M)


def test_every_example_is_in_the_readme_and_run_here():
    here = Path(__file__).read_text(encoding="utf-8")
    for path in (ROOT / "examples").iterdir():
        if path.suffix == ".py":
            assert f"| `{path.name}` |" in README and f'run_example("{path.name}"' in here.replace("\n        ", "")


def test_overhead(folder, run_example):
    out = run_example("overhead", "--family", folder / "mine.yaml", "--tokens", 24, "--contexts", 16, 64)
    rows = [line for line in out.splitlines() if "greedy" in line or "keyed" in line]
    assert len(rows) == 2 * 2 * len(AdaptivePyramid.from_family(str(folder / "mine.yaml")).pool().routes())
    assert all("1.00" in row for row in rows), "a verification copied more than once to the host"


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_readme_code(folder, monkeypatch, recwarn):
    monkeypatch.chdir(folder)
    family = graded_family("llama", 3, dtype=torch.float32)
    loaded = AdaptivePyramid.from_family(str(folder / "mine.yaml"))
    monkeypatch.setattr(
        AdaptivePyramid, "from_family", lambda name, **keywords: loaded if name == "smollm2-135m" else pytest.fail(name)
    )
    names = {
        "PromptLookup": PromptLookup,
        "draft": family[0],
        "qualifier": family[1],
        "target": family[2],
        "PyramidConfig": PyramidConfig,
        "config": PyramidConfig.simple([2, 2]),
    }
    first, models, stepping = blocks_of("python")
    exec(first.replace("max_new_tokens=100", "max_new_tokens=10"), names)
    assert len(names["out"].ids) <= 10
    models = models.replace("path/or/name-of-", str(folder) + "/").replace('"bfloat16"', '"float32"')
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    exec(models, names)
    assert names["pyramid"].profile.task == "any"
    names |= {"pyramid": loaded, "prompt_ids": [1, 10, 11]}
    exec(stepping, names)
    assert names["block"].stats.config == names["config"].with_stage(2, length=12)


def test_readme_names_what_exists():
    for name in re.findall(r"`(\w+\.py)`", README):
        assert (ROOT / "examples" / name).is_file(), name
    listed = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", README.partition("In `benchmarks/`")[2], flags=re.M))
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    assert {name for names in listed for name in names if name} == scripts
    for module in re.findall(r"python -m (tuning\.\w+)", README):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module
    for page in re.findall(r"docs/\w[\w-]*\.md", README):
        assert (ROOT / page).is_file(), page
    assert set(re.findall(r"from adaptive_pyramid import (\w+)", README)) <= set(adaptive_pyramid.__all__)


def test_never_slower(folder, run_example):
    out = run_example("never_slower", "--family", folder / "mine.yaml", "--tokens", 12, "--repeats", 1)
    assert re.search(r"12 +│ \d\.\d+ \[", out)


def test_drift_table(folder, run_example, monkeypatch):
    load = AdaptivePyramid.from_family  # on tiny models control finds nothing that pays, and so nothing that drifts
    monkeypatch.setattr(
        AdaptivePyramid,
        "from_family",
        lambda name: load(name, control="fixed", config=PyramidConfig.simple([2, 4], [0, 3.0])),
    )
    out = run_example(
        "drift_table",
        "--family",
        folder / "mine.yaml",
        "--tasks",
        "csqa",
        "--budgets",
        0,
        0.5,
        "--questions",
        2,
        "--tokens",
        20,
    )
    rows = [line.split("│") for line in out.splitlines() if line.startswith(("│ 0 ", "│ 0.5 "))]
    drift = [float(cells[5]) for cells in rows]  # greedy without and with a budget, sampling without and with
    assert drift[0] == drift[2] == 0.0 and drift[1] <= 0.5 and 0 < drift[3] <= 0.5
    assert float(rows[0][7]) == 1.0, "without a budget the answers are the target's own"


def test_control_table(tmp_path, run_example):
    traces = synthetic(4, tiers=2, n=40)
    mixed = [dataclasses.replace(trace, task=task) for trace, task in zip(traces, ("a", "b", "a", "b"))]
    TraceSet(traces.header, mixed).save(tmp_path / "traces.npz")
    out = run_example(
        "control_table",
        "--traces",
        tmp_path / "traces.npz",
        "--seeds",
        1,
        "--agreement",
        0.9,
        "--out",
        tmp_path / "table.md",
    )
    assert "| | a | b | mixed |" in out and (tmp_path / "table.md").read_text() in out
    rows = {
        line.split("|")[1].strip(): [float(cell.split()[0]) for cell in line.split("|")[2:5]]
        for line in out.splitlines()
        if line.startswith(("| planner", "| ucb1", "| Hugging Face"))
    }
    assert len(rows) == 5 and all(0.2 < share < 1.5 for row in rows.values() for share in row)


def test_prior_help(tmp_path, run_example):
    for seed, name in enumerate(("one", "other")):
        traces = synthetic(4, tiers=3, n=30, seed=seed)
        TraceSet(traces.header, [dataclasses.replace(trace, task="a") for trace in traces]).save(
            tmp_path / f"{name}.npz"
        )
    out = run_example(
        "prior_help",
        "--prior",
        tmp_path / "one.npz",
        "--objective",
        tmp_path / "other.npz",
        "--seeds",
        1,
        "--trials",
        3,
    )
    (cells,) = (line.split("│") for line in out.splitlines() if line.startswith("│ a "))
    assert all(re.fullmatch(r" *[123] \([123]\) *", cell) for cell in cells[2:5]) and 0.5 < float(cells[5]) <= 1.0


def test_prior_help_by_the_clock(folder, tmp_path, run_example):
    traces = synthetic(4, tiers=3, n=30, seed=0)
    TraceSet(traces.header, [dataclasses.replace(trace, task="gsm8k") for trace in traces]).save(tmp_path / "one.npz")
    arguments = (
        "--prior",
        tmp_path / "one.npz",
        "--family",
        folder / "mine.yaml",
        "--seeds",
        1,
        "--trials",
        2,
        "--tokens",
        6,
    )
    out = run_example("prior_help_clock", *arguments, "--questions", 2)
    rows = {line.split("│")[1].strip(): line.split("│")[2:5] for line in out.splitlines() if line.startswith("│")}
    assert all(re.fullmatch(r" *[123] \([123]\) *", cell) for cell in rows["trials"])
    assert max(float(cell) for cell in rows["ends at, of the best"]) > 0.5
    for wrong in (("--questions", 20), ("--task", "gsm8"), ("--task", "csqa"), ("--prior", tmp_path / "none.npz")):
        with pytest.raises(SystemExit) as ended:
            run_example("prior_help_clock", *arguments, *wrong)
        assert ended.value.code == 2


def test_profile_check(folder, run_example):
    tuned = Profile(
        "csqa",
        str(folder / "mine.yaml"),
        ("lookup", "draft", "target"),
        "pyramid",
        PyramidConfig.simple([2, 4]),
        study={"questions": 60, "seed": 0, "max_new_tokens": 6},
    )
    tuned.save(folder / "tuned.yaml")
    with pytest.raises(SystemExit) as ended:
        run_example("profile_check", folder / "tuned.yaml", "--questions", 2, "--tokens", 6)
    assert ended.value.code in (0, 1)
    tuned.study["questions"] = 100
    tuned.save(folder / "tuned.yaml")
    with pytest.raises(SystemExit, match="every question of task 'csqa' was in the study"):
        run_example("profile_check", folder / "tuned.yaml")
