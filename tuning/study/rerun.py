"""After the trials: a choice among the best of them, and what the profile states, measured on questions of its own.

The best of many noisy numbers is too high: where no config gains anything, the best trial still says that it does. So
the winner is timed once more on questions that chose nothing, neither the trials' nor those of the choice, one after
the other with target-only decoding; only these numbers go into the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from optuna.trial import FrozenTrial

from tuning.study.benchmark import Bench, Timed, in_rotation
from tuning.study.objective import Question
from tuning.study.paired_timings import PairedTimings, tokens_per_second
from tuning.study.settings import CHOICE_QUESTIONS, STATED_QUESTIONS
from tuning.study.trial_record import TrialRecord

FINALISTS = 3
COMPARED_QUESTIONS = 6  # of these also with Hugging Face and the family's other targets

Item = TypeVar("Item")


def split_fresh(fresh: Sequence[Item], of_trials: Sequence[Item]) -> tuple[list[Item], list[Item], bool]:
    """-> (for the choice, for what is stated, whether the latter chose nothing)

    Fresh questions go to the statement first; what is left over chooses, or else the trials' questions do. With fewer
    than two there is no interval: the trials' questions are all there is.
    """
    stated, left = list(fresh[:STATED_QUESTIONS]), list(fresh[STATED_QUESTIONS:][:CHOICE_QUESTIONS])
    choice = left if len(left) == CHOICE_QUESTIONS else list(of_trials[:CHOICE_QUESTIONS])
    return (choice, stated, True) if len(stated) > 1 else (choice, list(of_trials[:STATED_QUESTIONS]), False)


@dataclass
class Rerun:
    """The finalists timed again.

    Args:
        choice: how each finalist did on the questions that choose, in their order; empty for a single one. stated: the
            winner on other questions. fresh: whether those chose nothing before. hugging_face: its runs on the first
            of these prompts. other_targets: those of target-only decoding with other targets of the family, by name.
    """

    finalists: list[FrozenTrial]
    choice: list[PairedTimings]
    stated: PairedTimings
    fresh: bool
    hugging_face: list[Timed] = field(default_factory=list)
    other_targets: dict[str, list[Timed]] = field(default_factory=dict)

    @property
    def winner(self) -> FrozenTrial:
        return self.finalists[_best(self.choice)]

    def over_hugging_face(self, ours: Sequence[Timed]) -> float | None:
        """tokens/s of `ours`, runs on the stated prompts, over Hugging Face `generate`; None if that was not timed."""
        return _over(ours, self.hugging_face) if self.hugging_face else None

    def over_other_targets(self, ours: Sequence[Timed]) -> dict[str, float]:
        """tokens/s of `ours` over target-only decoding with the family's other targets."""
        return {name: _over(ours, runs) for name, runs in self.other_targets.items()}


def rerun_best(
    bench: Bench,
    choice: Sequence[Question],
    stated: Sequence[Question],
    finalists: Sequence[FrozenTrial],
    fresh: bool = True,
    progress: Callable[[], None] = lambda: None,
    others: Mapping[str, Bench] = {},
) -> Rerun:
    """Choose among `finalists` on the questions `choice`, then measure the winner against `ar` on those of `stated`.

    On the first COMPARED_QUESTIONS of these Hugging Face takes its turn, too, and so does the `ar` of `others`: by name,
    the family with other targets. `progress` is called after each question of `stated`, and of `choice` if there is one.
    """
    tallies = _choose(bench, choice, finalists, progress) if len(finalists) > 1 else []
    found = Rerun(list(finalists), tallies, PairedTimings(), fresh, other_targets={name: [] for name in others})
    config, prompts = TrialRecord.of(found.winner).config, []
    for other in others.values():
        other.ar(stated[0].prompts[0])  # the first run of a model that was just loaded is slower than all others

    def pair(prompt: Sequence[int]) -> list[Callable[[], Timed]]:
        return [lambda: bench.ar(prompt), lambda: bench.run(prompt, config)]

    for index, question in enumerate(stated):
        compared = index < COMPARED_QUESTIONS
        for prompt, answer in zip(question.prompts, question.answers):
            runs = pair(prompt)
            if compared:
                runs += [lambda other=other: other.ar(prompt) for other in others.values()]
                runs += [lambda: bench.hugging_face(prompt)] if bench.price is None else []
            ar, own, *beside = in_rotation(runs, len(prompts))
            found.stated.add(ar, own, len(answer), index)
            for name, timed in zip(others, beside):
                found.other_targets[name].append(timed)
            found.hugging_face += beside[len(others) :]
            prompts.append(prompt)
        progress()
    if bench.price is None:
        found.stated.settle(lambda index: tuple(in_rotation(pair(prompts[index]), index)))
    return found


def _choose(
    bench: Bench, questions: Sequence[Question], finalists: Sequence[FrozenTrial], progress: Callable[[], None]
) -> list[PairedTimings]:
    """Every finalist and `ar` on the same questions, each going first in turn."""
    configs = [TrialRecord.of(trial).config for trial in finalists]
    tallies, prompts = [PairedTimings() for _ in configs], []
    for index, question in enumerate(questions):
        for prompt, answer in zip(question.prompts, question.answers):
            runs = [lambda: bench.ar_at_its_pace(prompt)]
            runs += [lambda config=config: bench.run(prompt, config) for config in configs]
            ar, *own = in_rotation(runs, len(prompts))
            for tally, timed in zip(tallies, own):
                tally.add(ar, timed, len(answer), index)
            prompts.append(prompt)
        progress()
    for tally, config in zip(tallies, configs) if bench.price is None else ():
        tally.settle(lambda index: (bench.ar_at_its_pace(prompts[index]), bench.run(prompts[index], config)))
    return tallies


def _best(tallies: Sequence[PairedTimings]) -> int:
    """Where the fastest is; the first where there is no choice."""
    return max(range(len(tallies)), key=lambda index: tallies[index].gain.value, default=0)


def _over(ours: Sequence[Timed], theirs: Sequence[Timed]) -> float:
    return tokens_per_second(ours[: len(theirs)]) / tokens_per_second(theirs)
