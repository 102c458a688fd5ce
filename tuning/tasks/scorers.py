"""Scorers: one value in [0, 1] per example, and their mean with a 95 % interval."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuning.statistics import share
from tuning.tasks.answers import find_choice, find_number, find_program, normalised
from tuning.tasks.formats import Example
from tuning.tasks.sandbox import run_tests

Output = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Score:
    """Mean of `n` per-example values in [0, 1], with a 95 % interval [`low`, `high`].

    `details` holds `per_example` (the values, in order) and, by scorer, counts such as `unparsed` or rates.
    """

    value: float
    low: float
    high: float
    n: int
    label: str
    details: dict[str, Any]


@dataclass(frozen=True)
class Grade:
    """What a scorer makes of one output: the value, and a word for it that is counted in `Score.details`."""

    value: float
    note: str


class TaskScorer(Protocol):
    """`check` raises ValueError for an example that the scorer cannot use; `notes` are the words its grades carry."""

    label: str
    notes: tuple[str, ...]

    def check(self, example: Example) -> None: ...

    def grade(self, output: Output, example: Example) -> Grade: ...


class Choice:
    """Multiple choice: the label parsed from the output equals the reference."""

    label = "accuracy"
    notes = ("correct", "wrong", "unparsed")

    def check(self, example: Example) -> None:
        choices = example.meta.get("choices")
        if not isinstance(choices, dict) or example.reference not in choices:
            raise ValueError(f"expected 'choices' and an answer among them (format csqa), got {example.reference!r}")

    def grade(self, output: Output, example: Example) -> Grade:
        found = find_choice(_last_text(output, example), example.meta["choices"])
        if found is None:
            return Grade(0.0, "unparsed")
        return Grade(1.0, "correct") if found == example.reference else Grade(0.0, "wrong")


class Number:
    """The final number of the output equals the reference's, to a relative 1e-6."""

    label = "accuracy"
    notes = ("correct", "wrong", "unparsed")

    def check(self, example: Example) -> None:
        if not isinstance(example.reference, (str, int, float)) or find_number(str(example.reference)) is None:
            raise ValueError(f"expected a reference with a number in it, got {example.reference!r}")

    def grade(self, output: Output, example: Example) -> Grade:
        found, wanted = find_number(_last_text(output, example)), find_number(str(example.reference))
        if found is None or wanted is None:
            return Grade(0.0, "unparsed")
        near = abs(found - wanted) <= abs(wanted) / 1_000_000
        return Grade(1.0, "correct") if near else Grade(0.0, "wrong")


class Contains:
    """One of the reference's strings occurs in the output as whole words, case and spacing aside."""

    label = "answers contained"
    notes = ("correct", "wrong")

    def check(self, example: Example) -> None:
        wanted = self._wanted(example)
        if not wanted or not all(isinstance(text, str) and text.strip() for text in wanted):
            raise ValueError(f"expected a reference that is a string or a list of strings, got {example.reference!r}")

    def grade(self, output: Output, example: Example) -> Grade:
        text = normalised(_last_text(output, example))
        hit = any(_whole(normalised(wanted)).search(text) for wanted in self._wanted(example))
        return Grade(1.0, "correct") if hit else Grade(0.0, "wrong")

    def _wanted(self, example: Example) -> list[str]:
        reference = example.reference
        return list(reference) if isinstance(reference, (list, tuple)) else [reference]


class UnitTests:
    """HumanEval: the program passes its unit tests, run in a limited subprocess; without `run_code`, it parses."""

    def __init__(self, run_code: bool) -> None:
        self.run_code = run_code
        self.label = "pass@1" if run_code else "syntax check only (tests not run; pass run_code=True or --run-code)"
        self.notes = (
            ("passed", "wrong_answer", "error", "time_limit", "memory_limit", "exited", "unparsed")
            if run_code
            else ("parsed", "unparsed")
        )

    def check(self, example: Example) -> None:
        if not {"prompt", "entry_point"} <= set(example.meta) or not isinstance(example.reference, str):
            raise ValueError("expected 'prompt', 'test' and 'entry_point' (format humaneval)")

    def grade(self, output: Output, example: Example) -> Grade:
        entry_point = example.meta["entry_point"]
        program = find_program(_last_text(output, example), example.meta["prompt"], entry_point)
        if program is None:
            return Grade(0.0, "unparsed")
        if not self.run_code:
            return Grade(1.0, "parsed")
        outcome = run_tests(program, example.reference, entry_point)
        return Grade(float(outcome.passed), outcome.reason)


class Agreement:
    """How far an output is the reference output: positions equal before the first mismatch, over the longer length.

    The reference is what the target itself wrote (`Task.with_references`): one output per turn, each as token ids or as
    text (then positions are characters). 1 exactly when all turns are equal; turns are averaged. Token ids say more:
    two outputs can differ in ids and be the same text.
    """

    label = "agreement with the reference output up to the first mismatch"
    notes = ("exact", "differs")

    def check(self, example: Example) -> None:
        """Nothing to check: references come later, from the target."""

    def grade(self, output: Output, example: Example) -> Grade:
        if example.reference is None:
            raise ValueError(
                f"example {example.id!r} has no reference output: give the target's with task.with_references(outputs)"
            )
        pairs = list(zip(_per_turn(output, example), _per_turn(example.reference, example)))
        value = math.fsum(_agreement(given, wanted, example) for given, wanted in pairs) / len(pairs)
        return Grade(value, "exact" if value == 1.0 else "differs")


SCORERS = ("agreement", "choice", "contains", "number", "unit_tests")


def make_scorer(name: str, run_code: bool) -> TaskScorer:
    """The scorer called `name` (one of SCORERS)."""
    if name == "unit_tests":
        return UnitTests(run_code)
    return {"agreement": Agreement, "choice": Choice, "contains": Contains, "number": Number}[name]()


def grade_all(scorer: TaskScorer, outputs: Sequence[Output], examples: Sequence[Example]) -> list[Grade]:
    """One grade per example. An output is a string, token ids (agreement only), or a list with one of them per turn."""
    if isinstance(outputs, str) or len(outputs) != len(examples):
        count = "one string" if isinstance(outputs, str) else f"{len(outputs)} outputs"
        raise ValueError(f"outputs must hold one output for each of the {len(examples)} examples, got {count}")
    if not examples:
        raise ValueError("outputs must hold at least one output, got none")
    return [scorer.grade(output, example) for output, example in zip(outputs, examples)]


def score_of(grades: Sequence[Grade], scorer: TaskScorer, label: str) -> Score:
    """The mean of `grades` with its Wilson interval and the counts of their notes."""
    values = [grade.value for grade in grades]
    mean = math.fsum(values) / len(values)
    counts = Counter(grade.note for grade in grades)
    details: dict[str, Any] = {"per_example": values, **{note: counts[note] for note in scorer.notes}}
    if isinstance(scorer, Agreement):
        details["exact_match"] = counts["exact"] / len(values)
    return Score(*share(mean, len(values)), len(values), f"{scorer.label}: {label}", details)


def _whole(text: str) -> re.Pattern[str]:
    """`text` as whole words; digits must not go on ("12" is in neither "120" nor "12.5" nor "3,12")."""
    before = r"(?<!\w)(?<![0-9][.,])(?<!-)" if text[0].isdigit() else r"(?<!\w)"
    after = r"(?!\w)(?![.,][0-9])" if text[-1].isdigit() else r"(?!\w)"
    return re.compile(before + re.escape(text) + after)


def _last_text(output: Output, example: Example) -> str:
    """The text that is graded: the output, or its last turn's. Raises TypeError for anything but text."""
    text = output if isinstance(output, str) else _per_turn(output, example)[-1]
    if not isinstance(text, str):
        raise TypeError(f"output of example {example.id!r} must be text for this scorer, got {type(text).__name__}")
    return text


def _per_turn(output: Output, example: Example) -> list[Any]:
    """`output` as one text or id list per turn of `example`; arrays and tensors become lists."""
    output = _plain(output)
    if not isinstance(output, (str, list, tuple)):
        raise TypeError(f"output of example {example.id!r} must be text, token ids or a list of them, got {output!r}")
    turns = [_plain(turn) for turn in output]
    if isinstance(output, str) or not turns or not isinstance(turns[0], (str, list, tuple)):
        turns = [output]
    if len(turns) != len(example.turns):
        raise ValueError(f"output of example {example.id!r} must have {len(example.turns)} turn(s), got {len(turns)}")
    return turns


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _agreement(given: Any, wanted: Any, example: Example) -> float:
    if isinstance(given, str) != isinstance(wanted, str):
        raise TypeError(f"output and reference of example {example.id!r} must both be text or both be token ids")
    longer = max(len(given), len(wanted))
    mismatches = (i for i, (left, right) in enumerate(zip(given, wanted)) if left != right)
    equal = next(mismatches, min(len(given), len(wanted)))
    return equal / longer if longer else 1.0
