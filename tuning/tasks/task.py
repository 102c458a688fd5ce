"""Tasks to tune and measure on: prompts in a public format, and a scorer. One small YAML file each (docs/tasks.md).

>>> task = load_task("csqa", limit=20)
>>> calibration, held_out = split(task, 0.5)
>>> score = task.score(outputs, held_out)      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_pyramid.errors import check_int, check_keys, check_number, unknown_name
from adaptive_pyramid.yaml_file import read_yaml
from tuning.tasks.formats import FORMATS, Example, Row, build_examples, check_template, read_file
from tuning.tasks.scorers import (
    SCORERS,
    Grade,
    Output,
    Score,
    TaskScorer,
    grade_all,
    make_scorer,
    score_of,
)

__all__ = ["Example", "Score", "Task", "load_task", "split", "task_names"]

FOLDER = Path(__file__).with_name("data")
KEYS = (
    "name",
    "label",
    "description",
    "format",
    "data",
    "sample",
    "hub",
    "system",
    "fewshot",
    "prompt",
    "scorer",
    "max_new_tokens",
)
HUB_KEYS = ("path", "name", "split")


@dataclass(frozen=True)
class Task:
    """Examples and how their outputs are scored. `label` says what data they are (a sample says so).

    `max_new_tokens` is the default length of an answer, in tokens. `is_sample`: the shipped sample, not the benchmark.
    """

    name: str
    label: str
    description: str
    examples: list[Example]
    max_new_tokens: int
    is_sample: bool
    scorer: TaskScorer

    def score(self, outputs: Sequence[Output], examples: Sequence[Example] | None = None) -> Score:
        """Mean value of `outputs`, one per example (default: all of the task's), with its 95 % Wilson interval.

        An output is the generated text (token ids too for `agreement`), or a list with one per turn for examples of
        several turns; the last turn's text is what text scorers grade. Raises ValueError if the numbers of outputs and
        examples differ.
        """
        return score_of(self._grades(outputs, examples), self.scorer, self.label)

    def per_example(self, outputs: Sequence[Output], examples: Sequence[Example] | None = None) -> list[float]:
        """The values that `score` averages, in order: for `paired_bootstrap`."""
        return [grade.value for grade in self._grades(outputs, examples)]

    def with_references(self, outputs: Sequence[Output], examples: Sequence[Example] | None = None) -> Task:
        """This task with `outputs` (the target's own) as the references of `examples`: what `agreement` compares with.

        The new task holds just these examples.
        """
        chosen = self.examples if examples is None else examples
        if len(outputs) != len(chosen):
            raise ValueError(f"outputs must hold one output for each of the {len(chosen)} examples, got {len(outputs)}")
        return replace(self, examples=[replace(example, reference=output) for example, output in zip(chosen, outputs)])

    def _grades(self, outputs: Sequence[Output], examples: Sequence[Example] | None) -> list[Grade]:
        return grade_all(self.scorer, outputs, self.examples if examples is None else examples)


def task_names() -> list[str]:
    """Names of the tasks that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_task(
    name_or_path: str | Path,
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    run_code: bool = False,
) -> Task:
    """The task called `name_or_path`, or the one that a YAML file describes.

    data: None reads the file that the task names (relative to its YAML); a path reads that file, in the task's format;
        "hub" loads the task's dataset through `datasets` (a file of that name: "./hub").
    limit: at most this many examples, the first of a permutation seeded with `seed`, so that limit=10 begins limit=20.
        None keeps all, in file order.
    run_code: let the scorer `unit_tests` run generated code in a limited subprocess; else it checks syntax only.

    Raises ValueError (unknown task or key, malformed data: file, line and what was expected), FileNotFoundError, and
    ImportError for data="hub" without `datasets`.
    """
    path = _yaml_path(name_or_path)
    spec = _read_spec(path)
    examples = build_examples(
        _rows(spec, path, data), spec["format"], spec["prompt"], spec["name"], spec["system"], spec["fewshot"]
    )
    scorer = make_scorer(spec["scorer"], run_code)
    for example in examples:
        try:
            scorer.check(example)
        except ValueError as error:
            where = f"task {spec['name']}, example {example.id!r}"
            raise ValueError(f"{where}: {error} (scorer {spec['scorer']})") from None
    total = len(examples)
    if limit is not None:
        order = np.random.default_rng(check_int("seed", seed, 0)).permutation(total)
        examples = [examples[i] for i in order[: check_int("limit", limit, 1)]]
    is_sample = spec["sample"] and data is None
    source = (
        f"sample of {total} written for this package, not the benchmark"
        if is_sample
        else (spec["hub"]["path"] if data == "hub" else Path(data or spec["data"]).name)
    )
    return Task(
        spec["name"],
        f"{spec['label']} ({source})",
        spec["description"],
        examples,
        spec["max_new_tokens"],
        is_sample,
        scorer,
    )


def split(task: Task, calibration: float = 0.5, *, seed: int = 0) -> tuple[list[Example], list[Example]]:
    """(calibration, held out): disjoint, seeded, together all of `task`; `calibration` is the fraction of the first.

    Raises ValueError if either list would be empty.
    """
    fraction = check_number("calibration", calibration, 0.0, 1.0)
    count = round(fraction * len(task.examples))
    if not 0 < count < len(task.examples):
        raise ValueError(f"calibration={calibration} leaves one side of the {len(task.examples)} examples empty")
    order = np.random.default_rng(check_int("seed", seed, 0)).permutation(len(task.examples))
    return [task.examples[i] for i in order[:count]], [task.examples[i] for i in order[count:]]


def _yaml_path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not path.is_file():
            raise FileNotFoundError(f"task file {str(path)!r} does not exist or is no file")
        return path
    if str(name_or_path) not in task_names():
        raise ValueError(f"{unknown_name('task', name_or_path, task_names())}; your own task is a path to a .yaml file")
    return FOLDER / f"{name_or_path}.yaml"


def _read_spec(path: Path) -> dict[str, Any]:
    """The YAML file as a dict with every key of KEYS, checked."""
    given = read_yaml(path, "task file")
    check_keys(str(path), given, KEYS, required=("name", "format", "scorer"))
    spec = {
        "label": given["name"],
        "description": "",
        "data": None,
        "sample": False,
        "hub": None,
        "system": None,
        "fewshot": [],
        "prompt": None,
        "max_new_tokens": 128,
        **given,
    }
    for key in ("name", "label", "description", "format", "data", "system", "prompt", "scorer"):
        if spec[key] is not None and not isinstance(spec[key], str):
            raise TypeError(f"{path}: {key} must be text, got {spec[key]!r}")
    for key, known in (("format", sorted(FORMATS)), ("scorer", SCORERS)):
        if spec[key] not in known:
            raise ValueError(f"{path}: {unknown_name(key, spec[key], known)}")
    spec["fewshot"] = _shots(spec["fewshot"], path)
    if not isinstance(spec["sample"], bool):
        raise TypeError(f"{path}: sample must be true or false, got {spec['sample']!r}")
    check_int(f"{path}: max_new_tokens", spec["max_new_tokens"], 1)
    if spec["hub"] is not None:
        if not isinstance(spec["hub"], Mapping):
            raise TypeError(f"{path}: hub must be a mapping with the keys {', '.join(HUB_KEYS)}, got {spec['hub']!r}")
        check_keys(f"hub of {path}", spec["hub"], HUB_KEYS, required=("path", "split"))
    fields = FORMATS[spec["format"]].fields
    if spec["prompt"] is None:
        if fields != ("text",):
            raise ValueError(f"{path} lacks 'prompt', a template with the fields {', '.join(fields)}")
        spec["prompt"] = "{text}"
    try:
        check_template(spec["prompt"], fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return spec


def _shots(given: Any, path: Path) -> list[dict[str, str]]:
    """The worked examples `fewshot` ({user, assistant} pairs) as chat messages."""
    if not isinstance(given, list) or not all(isinstance(shot, Mapping) for shot in given):
        raise TypeError(f"{path}: fewshot must be a list of mappings with the keys user and assistant, got {given!r}")
    messages = []
    for shot in given:
        check_keys(f"fewshot of {path}", shot, ("user", "assistant"), required=("user", "assistant"))
        for role in ("user", "assistant"):
            if not isinstance(shot[role], str) or not shot[role].strip():
                raise TypeError(f"{path}: {role} in fewshot must be text, got {shot[role]!r}")
            messages.append({"role": role, "content": shot[role]})
    return messages


def _rows(spec: Mapping[str, Any], path: Path, data: str | Path | None) -> Iterator[tuple[str, Row]]:
    if data == "hub":
        return _hub_rows(spec)
    if data is None and spec["data"] is None:
        raise ValueError(f"task {spec['name']} names no data: pass data=FILE (--data FILE) in {spec['format']} format")
    return read_file(path.parent / spec["data"] if data is None else Path(data), spec["format"])


def _hub_rows(spec: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    if spec["hub"] is None:
        raise ValueError(f"task {spec['name']} names no hub dataset: pass data=FILE in {spec['format']} format")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("data='hub' needs the package datasets: pip install 'adaptive-pyramid[hub]'") from error
    hub = spec["hub"]
    rows = load_dataset(hub["path"], hub.get("name"), split=hub["split"])
    return ((f"{hub['path']} ({hub['split']}), row {number}", row) for number, row in enumerate(rows, start=1))
