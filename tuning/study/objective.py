"""One trial: a config against target-only decoding, question by question in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import optuna

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.prompts import prompt_ids
from tuning.statistics import paired_bootstrap
from tuning.study.benchmark import Bench, Timed, in_rotation
from tuning.study.paired_timings import PairedTimings
from tuning.study.prior import Prior
from tuning.study.search_space import SearchSpace
from tuning.study.settings import Limits
from tuning.study.trial_record import ScoreSummary, TrialRecord
from tuning.tasks.formats import Example
from tuning.tasks.scorers import Agreement, Score
from tuning.tasks.task import Task

MIN_QUESTIONS = 12  # a trial is never pruned on fewer: its number should mean something


@dataclass(frozen=True)
class Question:
    """An example with the prompt of each turn and the target's own answer to it, both as ids.

    Later turns follow the target's answers whatever is measured, so that everything answers the same prompts.
    """

    example: Example
    prompts: list[list[int]]
    answers: list[list[int]]


def ask(
    bench: Bench,
    examples: Sequence[Example],
    answers: Sequence[Sequence[list[int]]] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Question]:
    """The target's answers to `examples`; taken from `answers` (per example and turn) where they are known already."""
    questions = []
    for index, example in enumerate(examples):
        question = Question(example, [], [])
        for turn in range(len(example.turns)):
            replies = [bench.answer_text(ids) for ids in question.answers]
            prompt = prompt_ids(bench.pyramid.tokenizer, example.messages(replies))
            question.prompts.append(prompt)
            question.answers.append(list(answers[index][turn]) if answers is not None else bench.answer(prompt).ids)
        questions.append(question)
        progress()
    return questions


@dataclass
class Objective:
    """Speed of a config as a ratio to `ar`: what the study maximises; speed and score with `with_score`.

    Everything else a trial measured stands in its user attributes, as a `TrialRecord`.

    Args:
        worker: who measures, for the record.
    """

    bench: Bench
    questions: Sequence[Question]
    space: SearchSpace
    prior: Prior
    task: Task
    limits: Limits
    worker: str
    with_score: bool = False

    def __post_init__(self) -> None:
        examples = [question.example for question in self.questions]
        texts = [self._texts(question.answers) for question in self.questions]
        if isinstance(self.task.scorer, Agreement):
            self.task = self.task.with_references(texts, examples)
            examples = self.task.examples
        self._examples = examples
        self._ar_values = self.task.per_example(texts, examples)
        self.ar_score = self.task.score(texts, examples)

    def __call__(
        self,
        trial: optuna.Trial,
        claimed: Callable[[], None] = lambda: None,
        interruptible: Callable[[], AbstractContextManager] = nullcontext,
        progress: Callable[[], None] = lambda: None,
    ) -> float | tuple[float, float]:
        """Measure a trial.

        Args:
            claimed: called once the trial's parameters are stored, before the slow part.
            interruptible: a context for what takes long and leaves the database alone, where Ctrl-C does no harm.
            progress: called after each question.
        """
        config = self.space.suggest(trial)
        predicted = self.prior.predict(config)
        record = TrialRecord(config, predicted.ratio, predicted.formula_ratio, self.worker)
        record.store(trial)
        claimed()
        timings, prompts = PairedTimings(), []

        def pair(prompt: Sequence[int], turn: int) -> list[Timed]:
            runs = (lambda: self.bench.ar_at_its_pace(prompt), lambda: self.bench.run(prompt, config))
            with interruptible():
                return in_rotation(runs, turn + trial.number)

        for index, question in enumerate(self.questions):
            for prompt, answer in zip(question.prompts, question.answers):
                prompts.append(prompt)
                timings.add(*pair(prompt, index), answer_tokens=len(answer), question=index)
            progress()
            if self.with_score:
                continue  # a study of two objectives takes no intermediate values and prunes nothing
            trial.report(timings.own[-1].tokens_per_second / timings.ar[-1].tokens_per_second, index)
            if index + 1 >= MIN_QUESTIONS and index + 1 < len(self.questions) and trial.should_prune():
                replace(record, speed=timings.summary()).store(trial)
                raise optuna.TrialPruned
        if self.bench.price is None:
            timings.settle(lambda index: pair(prompts[index], index))
        record = replace(record, speed=timings.summary())
        record.store(trial)
        with interruptible():
            score, loss = self.score(config)
        replace(record, score=ScoreSummary.of(score), score_loss=loss).store(trial)
        for name, excess in self.limits.excesses(score.value, loss[0], record.speed.mean_drift).items():
            trial.set_constraint(name, excess)
        return (record.speed.ratio, score.value) if self.with_score else record.speed.ratio

    def score(self, config: PyramidConfig) -> tuple[Score, tuple[float, float, float]]:
        """-> (task score, what it lost against `ar` on the same questions with its 95 % interval)

        A lossless method writes the target's own text, so its score is `ar`'s, measured once. In half precision single
        near-ties may fall otherwise, which "agreement" shows.
        """
        if self.bench.method.lossless:
            return self.ar_score, (0.0, 0.0, 0.0)
        texts = [
            self._texts([self.bench.answer(prompt, config).ids for prompt in question.prompts])
            for question in self.questions
        ]
        values = self.task.per_example(texts, self._examples)
        return self.task.score(texts, self._examples), paired_bootstrap(self._ar_values, values)

    def _texts(self, answers: Sequence[Sequence[int]]) -> str | list[str]:
        texts = [self.bench.answer_text(ids) for ids in answers]
        return texts[0] if len(texts) == 1 else texts
