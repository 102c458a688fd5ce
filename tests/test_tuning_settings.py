"""Which questions a search uses for what."""

from __future__ import annotations

import pytest

from tuning.study.settings import Settings, choose_examples


@pytest.mark.parametrize(
    ("task", "questions", "sizes"),
    [
        ("csqa", 12, (12, 8, 16)),  # 100 in the sample
        ("gsm8k", 12, (12, 7, 7)),  # 26: what is left is shared
        ("humaneval", 12, (12, 1, 1)),  # 14
        ("humaneval", 13, (13, 1, 0)),
    ],
)
def test_measured_calibrating_and_fresh_questions_are_disjoint(task, questions, sizes) -> None:
    chosen = choose_examples(Settings(task, questions=questions))
    lists = (chosen.measured, chosen.calibration, chosen.fresh)
    assert tuple(map(len, lists)) == sizes
    assert len({example.id for examples in lists for example in examples}) == sum(sizes)


def test_more_questions_begin_with_the_same_ones() -> None:
    few, many = (choose_examples(Settings("csqa", questions=count)).measured for count in (2, 12))
    assert [example.id for example in many[:2]] == [example.id for example in few]


def test_no_question_left_to_calibrate_on() -> None:
    with pytest.raises(ValueError, match="--questions 14 leaves nothing to calibrate on"):
        choose_examples(Settings("humaneval", questions=14))
