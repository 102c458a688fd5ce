"""Scorers against odd outputs; intervals; the paired bootstrap."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, strategies

from tuning.tasks import load_task, paired_bootstrap
from tuning.tasks.answers import find_choice, find_number, find_program
from tuning.tasks.formats import Example

CHOICES = {"A": "kitchen", "B": "state park", "C": "park", "D": "bank", "E": "vitamin shop"}


@pytest.mark.parametrize(
    "output, label",
    [
        ("Food is there.\nAnswer: B", "B"),
        ("Answer: A\nAnswer: B", "B"),
        ("**Answer:** (C)", "C"),
        ("Answer:\nC", "C"),
        ("Answer: b", "B"),
        ("ANSWER = D", "D"),
        ("answer：B", "B"),
        ("Answer: $\\boxed{\\text{E}}$", "E"),
        ("Answer: B. state park", "B"),
        ("Answer: B, because A is wrong", "B"),
        ("The correct option would be E)", "E"),
        ("The best answer is the letter C", "C"),
        ("Answer: B\nI hope this answer is helpful.", "B"),
        ("Answer: not A. Answer: C", "C"),
        ("Answer: X (D)", "D"),
        ("Answer B", "B"),
        ("B", "B"),
        ("B.", "B"),
        ("B) state park", "B"),
        ("I think (B) fits.", "B"),
        ("the answer is a kitchen", "A"),
        ("Answer: A park", "C"),
        ("You would go to the bank.", "D"),
        ("state park", "B"),
        ("the park", "C"),
        ("Answer: State Park.", "B"),
        ("\\boxed{D}", "D"),
        ("So it is $\\boxed{\\text{B}}$.", "B"),
        ("\\boxed{(C)}", "C"),
        ("\\boxed{b}", "B"),
        ("\\boxed{state park}", "B"),
        ("Answer: A\nNo: \\boxed{C}", "C"),
        ("1. B", "B"),
        ("1) **B**", "B"),
        ("1. B. state park", "B"),
        ("1. B)", "B"),
        ("- B", "B"),
        ("> (B)", "B"),
        ("### Option B", "B"),
        ("1. A\n2. B", None),
        ("1. Be careful", None),
        ("\\boxed{A or B}", None),
        ("\\boxed{}", None),
        ("Answer: A or B", None),
        ("Answer: A, B, C, D or E", None),
        ("Answer: A/B", None),
        ("Answer: (A) and (B)", None),
        ("A. kitchen\nB. state park\nC. park\nD. bank\nE. vitamin shop", None),
        ("(A) is wrong, (C) is right", None),
        ("a state park or a bank", None),
        ("Answer: X", None),
        ("Answer:", None),
        ("Answer: BBQ", None),
        ("Answer: E-mail", None),
        ("A person would eat here.", None),
        ("The answer is not A", None),
        ("", None),
    ],
)
def test_find_choice(output, label):
    assert find_choice(output, CHOICES) == label


def test_find_choice_reads_whole_words_after_the_cue():
    assert find_choice("The answer is because.", {"A": "reason", "B": "because"}) == "B"
    assert find_choice("Answer: 2", {"1": "one", "2": "two"}) == "2"
    assert find_choice("- 2", {"1": "one", "2": "two"}) == "2"
    assert find_choice("twin", {"A": "twin", "B": "twin"}) is None


@given(strategies.text(alphabet="ABE answeri:()*`\n.or$\\", max_size=200))
def test_find_choice_never_fails(output):
    assert find_choice(output, CHOICES) in {None, *CHOICES}


@pytest.mark.parametrize(
    "output, number",
    [
        ("42", "42"),
        ("so it costs $1,234.50 in all.", "1234.50"),
        ("**$1,000,000**", "1000000"),
        ("1{,}000", "1000"),
        ("1 000", "1000"),
        ("1\u00a0000", "1000"),
        ("1\u202f234\u202f567.5", "1234567.5"),
        ("12\u2009345", "12345"),
        ("1\\,000", "1000"),
        ("1'000", "1000"),
        ("1_000_000", "1000000"),
        ("1.000.000", "1000000"),
        ("$ 2 500 $", "2500"),
        ("-1 000", "-1000"),
        ("1.000", "1.000"),
        ("in 2020 100 people", "100"),
        ("1 0000", "0"),
        ("1, 200", "200"),
        ("1 00", "0"),
        ("1,000 000", "0"),  # one number keeps to one separator
        ("0 500", "500"),
        ("1\n000", "0"),
        ("\\boxed{42} apples, 3 left", "42"),
        ("\\boxed{1\\,000\\text{ m}} of 7", "1000"),
        ("\\boxed{x} is 3", "3"),
        ("\\boxed{42 #### 6", "6"),
        ("-5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("x = −3", "-3"),
        ("10-5", "5"),
        ("10 - 5", "5"),
        ("(3)-4", "4"),
        ("25%", "25"),
        ("10\\%", "10"),
        (".5", "0.5"),
        ("...5", "5"),
        ("It is 42.", "42"),
        ("12,34", "34"),
        ("1e5", "100000"),
        ("3rd", "3"),
        ("5-year-old", "5"),
        ("€3", "3"),
        ("first 3, then 4", "4"),
        ("#### 7\nCheck: 3", "7"),
        ("12 apples ####", "12"),
        ("#### -1,200", "-1200"),
        ("none", None),
        ("", None),
        ("####", None),
        ("½", None),
    ],
)
def test_find_number(output, number):
    assert find_number(output) == (None if number is None else Decimal(number))


@given(strategies.text(alphabet="0123456789.,-$%e#−{} a'_\u202f\\", max_size=100))
def test_find_number_never_fails(output):
    assert find_number(output) is None or find_number(output).is_finite()


def test_number_scorer_counts_unparsed_apart():
    task = load_task("gsm8k", limit=4)
    wanted = [example.reference for example in task.examples]
    score = task.score([f"#### {wanted[0]}.00", f"It is ${wanted[1]}", "no idea", "about 99999999"])
    assert (score.value, score.n) == (0.5, 4)
    assert {note: score.details[note] for note in ("correct", "wrong", "unparsed")} == {
        "correct": 2,
        "wrong": 1,
        "unparsed": 1,
    }


def test_choice_scorer_counts_unparsed_as_wrong():
    task = load_task("csqa", limit=4)
    right = [f"Answer: {example.reference}" for example in task.examples]
    assert task.score(right).value == 1.0
    score = task.score([*right[:3], "who knows"])
    assert (score.value, score.details["unparsed"], score.details["per_example"]) == (0.75, 1, [1.0, 1.0, 1.0, 0.0])
    assert task.per_example(right[:2], task.examples[:2]) == [1.0, 1.0]
    assert "accuracy" in score.label and "sample" in score.label


def test_contains_needs_whole_words_and_whole_numbers():
    task = load_task("long_context", limit=1)

    def value(output: str, *answers: str) -> float:
        return task.score([output], [Example("x", ("?",), list(answers))]).value

    assert value("It grew under a LARCH.", "larch") == 1.0
    assert value("at 10:45\n each night", "10:45") == value("3,847 meters", "3847", "3,847") == 1.0
    assert value("Wilhelmina\n  Drake did", "Wilhelmina Drake") == 1.0
    for output in ("120", "12.5", "3,12", "-12", "112", "12th"):
        assert value(output, "12") == 0.0
    assert value("larches", "larch") == value("", "larch") == 0.0


def test_agreement_is_the_prefix_before_the_first_mismatch():
    task = load_task("prompts", limit=1)

    def value(output, reference) -> float:
        score = task.with_references([reference]).score([output])
        assert score.details["exact_match"] == float(output == reference)
        return score.value

    assert value([1, 2, 3, 4], [1, 2, 3, 4]) == value([], []) == 1.0
    assert value([1, 2, 9, 4], [1, 2, 3, 4]) == 0.5
    assert value([1, 2], [1, 2, 3, 4]) == value([1, 2, 3, 4], [1, 2]) == 0.5
    assert value("", "abc") == value([9, 2, 3], [1, 2, 3]) == 0.0
    assert value("abcd", "abxd") == 0.5
    assert task.with_references([[1, 2]]).score([np.array([1, 2])]).value == 1.0


def test_agreement_averages_turns_and_refuses_what_it_cannot_compare():
    task = load_task("spec_bench")
    double = next(example for example in task.examples if len(example.turns) == 2)
    with pytest.raises(ValueError, match="no reference output"):
        task.score([("a", "b")], [double])
    ready = task.with_references([([1, 2], [3, 4])], [double])
    assert ready.score([([1, 2], [3, 5])]).value == 0.75
    with pytest.raises(ValueError, match=r"2 turn\(s\), got 1"):
        ready.score([[1, 2]])
    with pytest.raises(TypeError, match="both be text or both be token ids"):
        ready.score([("a", "b")])


def test_outputs_must_match_the_examples():
    task = load_task("csqa", limit=3)
    for outputs, count in ((["Answer: A"], "1 outputs"), ("abc", "one string")):
        with pytest.raises(ValueError, match=count):
            task.score(outputs)
    with pytest.raises(ValueError, match="at least one"):
        task.score([], [])
    with pytest.raises(TypeError, match="must be text"):
        task.score([None, None, None])
    with pytest.raises(TypeError, match="must be text"):
        task.score([[1, 2], [3], [4]])


PROMPT = 'import math\n\n\ndef area(r):\n    """Area of a disc."""\n'
LINE = "\n"
BODY = "    x = r * r\n    return math.pi * x\n"


@pytest.mark.parametrize(
    "output",
    [
        BODY,
        BODY.strip(),
        "x = r * r\nreturn math.pi * x",
        f"```python\n{PROMPT}{BODY}```\nIt works:\n```\nprint(1)\n```",
        f"Sure:\n```py\ndef area(r):\n{BODY}",
        f"Here is the function.\ndef area(r):\n{BODY}\nHope it helps!",
        f"```\n{BODY}```",
        BODY + "\nThat is: done",
        f"```python\ndef area(r):\n{BODY}\ndef cut_off(x):\n    return (1 +\n```",
        f"def area(r):\n{BODY}return x",
        f"Sure:\n~~~python\ndef area(r):\n{BODY}~~~\nIt works.",
        f"~~~\n{BODY}~~~",
        f"````py\ndef area(r):\n{BODY}````",
        f"class Solution:\n    def area(self, r):\n    {BODY.replace(LINE, LINE + '    ')}",
        f"```python\nclass Solution:\n    def __init__(self):\n        self.r = 0\n\n    @staticmethod\n"
        f"    def area(r):\n    {BODY.replace(LINE, LINE + '    ')}\n```\nThat is all.",
    ],
)
def test_find_program_in_the_shapes_that_models_write(output):
    scope: dict = {}
    exec(find_program(output, PROMPT, "area"), scope)
    assert scope["area"](2) == pytest.approx(12.566370614)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "pass",
        "I cannot do that.",
        f"```python\n{PROMPT}```",
        "```",
        "(" * 5000,
        "\0",
        "-" * 20000 + "1",
        "    import os",
        "class Solution:\n    def area(self, r):\n        pass",
        "class Other:\n    def area(self, r):\n        return r",
        "~~~\nclass Solution:\n    def volume(self, r):\n        return r\n~~~",
    ],
)
def test_find_program_finds_none_where_there_is_none(output):
    assert find_program(output, PROMPT, "area") is None


def test_paired_bootstrap_pairs_and_repeats():
    generator = np.random.default_rng(1)
    b = generator.normal(0, 10, 200)
    a = b + 1 + generator.normal(0, 0.5, 200)
    mean, low, high = paired_bootstrap(a, b)
    assert 0.8 < low < mean < high < 1.2  # unpaired, the interval would be about 4 wide
    assert mean == pytest.approx(np.mean(a - b)) and high - low == pytest.approx(2 * 1.96 * 0.5 / 200**0.5, rel=0.2)
    assert paired_bootstrap(a, b) == (mean, low, high) != paired_bootstrap(a, b, seed=1)
    assert paired_bootstrap([1.0], [0.5]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "a, b, resamples", [([], [], 10), ([1.0], [1.0, 2.0], 10), ([float("nan")], [1.0], 10), ([1.0], [1.0], 0)]
)
def test_paired_bootstrap_refuses(a, b, resamples):
    with pytest.raises(ValueError):
        paired_bootstrap(a, b, resamples=resamples)
