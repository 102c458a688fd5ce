"""The last step: the best trials against each other, `ar` and Hugging Face, and a profile of the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from tuning.study.benchmark import Bench, Timed, in_rotation
from tuning.study.objective import PairedTimings, Question
from tuning.study.trial_record import TrialRecord

FINALISTS = 3
RERUN_QUESTIONS = 6  # enough to undo most of the luck, and half a trial's time per finalist


@dataclass
class Rerun:
    """Everything timed in turn on the same prompts: fresh numbers, free of the luck that made a trial the best of many.

    Args:
        tallies: one per finalist, in their order. hugging_face: its runs, by prompt. other_targets: those of
            target-only decoding with other targets of the family, by their names.
    """

    finalists: list[FrozenTrial]
    tallies: list[PairedTimings]
    hugging_face: list[Timed] = field(default_factory=list)
    other_targets: dict[str, list[Timed]] = field(default_factory=dict)

    @property
    def winner(self) -> int:
        return max(range(len(self.tallies)), key=lambda index: self.tallies[index].ratio)

    def over_hugging_face(self, index: int) -> float | None:
        """tokens/s of a finalist over those of Hugging Face `generate`; None if that was not timed."""
        return self._over(self.hugging_face, index) if self.hugging_face else None

    def over_other_targets(self, index: int) -> dict[str, float]:
        """tokens/s of a finalist over those of target-only decoding with the family's other targets."""
        return {name: self._over(runs, index) for name, runs in self.other_targets.items()}

    def _over(self, runs: Sequence[Timed], index: int) -> float:
        theirs = sum(run.tokens for run in runs) / sum(run.seconds for run in runs)
        return self.tallies[index].summary().tokens_per_second / theirs


def rerun_best(
    bench: Bench,
    questions: Sequence[Question],
    finalists: Sequence[FrozenTrial],
    progress: Callable[[], None] = lambda: None,
    others: Mapping[str, Bench] = {},
) -> Rerun:
    """Time `ar`, Hugging Face and every finalist on the same questions, each going first in turn.

    `others`: by name, the family with other targets, whose `ar` is timed as well.
    """
    rerun = Rerun(list(finalists), [PairedTimings() for _ in finalists], other_targets={name: [] for name in others})
    configs = [TrialRecord.of(trial).config for trial in finalists]
    for other in others.values():
        other.ar(questions[0].prompts[0])  # the first run of a model that was just loaded is slower than all others
    turn = 0
    for question in questions:
        for prompt, answer in zip(question.prompts, question.answers):
            runs: list[Callable[[], Timed]] = [lambda: bench.ar(prompt)]
            runs += [lambda config=config: bench.run(prompt, config) for config in configs]
            runs += [lambda other=other: other.ar(prompt) for other in others.values()]
            if bench.price is None:
                runs.append(lambda: bench.hugging_face(prompt))
            ar, *own = in_rotation(runs, turn)
            if bench.price is None:
                rerun.hugging_face.append(own.pop())
            for name, timed in zip(others, own[len(configs) :]):
                rerun.other_targets[name].append(timed)
            for tally, timed in zip(rerun.tallies, own):
                tally.add(ar, timed, len(answer))
            turn += 1
        progress()
    return rerun
