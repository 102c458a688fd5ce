"""One trial: a config against target-only decoding, question by question in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import optuna

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.prompts import prompt_ids
from adaptive_pyramid.stats import BlockStats, GenerationStats
from tuning.study.benchmark import Bench, Timed, in_rotation, ratio_interval
from tuning.study.prior import Prior
from tuning.study.search_space import SearchSpace
from tuning.study.settings import Limits
from tuning.study.trial_record import ScoreSummary, SpeedSummary, TrialRecord
from tuning.tasks.formats import Example
from tuning.tasks.scorers import Agreement, Score, paired_bootstrap
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
class PairedTimings:
    """A config's timed runs beside target-only ones on the same prompts."""

    ar: list[Timed] = field(default_factory=list)
    own: list[Timed] = field(default_factory=list)
    until_end: list[tuple[float, float]] = field(default_factory=list)  # seconds to the answer's own end: ar, own

    def add(self, ar: Timed, own: Timed, answer_tokens: int) -> None:
        self.ar.append(ar)
        self.own.append(own)
        self.until_end.append((ar.seconds_until(answer_tokens), own.seconds_until(answer_tokens)))

    @property
    def ratio(self) -> float:
        """Time saved over the kept prompts: seconds per token of `ar` over the config's."""
        ar, own = self._kept()
        return _tokens_per_second(own) / _tokens_per_second(ar)

    def _kept(self) -> tuple[list[Timed], list[Timed]]:
        """-> (`ar`, own) without one in eight prompts at either end of the ratios.

        Something else that the machine does for a second must not decide between configs; twelve prompts lose two.
        """
        ar, own = self._speeds()
        order = sorted(range(len(own)), key=lambda i: own[i] / ar[i])
        cut = len(order) // 8
        kept = sorted(order[cut : len(order) - cut])
        return [self.ar[i] for i in kept], [self.own[i] for i in kept]

    def _speeds(self) -> tuple[list[float], list[float]]:
        return [run.tokens_per_second for run in self.ar], [run.tokens_per_second for run in self.own]

    def summary(self) -> SpeedSummary:
        """What a trial stores of these runs."""
        stats = GenerationStats(blocks=[block for run in self.own for block in _blocks(run)])
        tested = [stage for stage in stats.stages if stage.accepted + stage.rejected]
        ar, own = self._kept()
        paces = [[run.seconds / run.tokens for run in runs] for runs in (ar, own)]
        return SpeedSummary(
            ratio=self.ratio,
            ratio_interval=ratio_interval(*paces),
            ratio_median=statistics.median(b / a for a, b in zip(*self._speeds())),
            answer_ratio=sum(a for a, _ in self.until_end) / sum(b for _, b in self.until_end),
            tokens_per_second=_tokens_per_second(own),
            ar_tokens_per_second=_tokens_per_second(ar),
            prompts=len(self.own),
            tokens=sum(run.tokens for run in self.own),
            acceptance={stage.tier: stage.acceptance_rate for stage in tested},
            acceptance_length={stage.tier: stage.acceptance_length for stage in stats.stages},
            agreement=sum(map(agreement, self.ar, self.own)) / len(self.own),
            mean_drift=stats.mean_drift,
            seconds=tuple((round(a.seconds, 4), round(b.seconds, 4)) for a, b in zip(self.ar, self.own)),
        )


def agreement(one: Timed, other: Timed) -> float:
    """Share of tokens before the first that differs, among as many as both have."""
    shorter = min(len(one.ids), len(other.ids))
    return next((i for i, (a, b) in enumerate(zip(one.ids, other.ids)) if a != b), shorter) / shorter


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
        tally = PairedTimings()
        for index, question in enumerate(self.questions):
            for prompt, answer in zip(question.prompts, question.answers):
                runs = (lambda: self.bench.ar_at_its_pace(prompt), lambda: self.bench.run(prompt, config))
                with interruptible():
                    timed = in_rotation(runs, index + trial.number)
                tally.add(*timed, answer_tokens=len(answer))
            progress()
            if self.with_score:
                continue  # a study of two objectives takes no intermediate values and prunes nothing
            trial.report(tally.own[-1].tokens_per_second / tally.ar[-1].tokens_per_second, index)
            if index + 1 >= MIN_QUESTIONS and index + 1 < len(self.questions) and trial.should_prune():
                replace(record, speed=tally.summary()).store(trial)
                raise optuna.TrialPruned
        record = replace(record, speed=tally.summary())
        record.store(trial)
        with interruptible():
            score, loss = self.score(config)
        replace(record, score=ScoreSummary.of(score), score_loss=loss).store(trial)
        for name, excess in self.limits.excesses(score.value, loss[0], record.speed.mean_drift).items():
            trial.set_constraint(name, excess)
        return (tally.ratio, score.value) if self.with_score else tally.ratio

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


def _blocks(run: Timed) -> list[BlockStats]:
    return run.stats.blocks if run.stats is not None else []


def _tokens_per_second(runs: Sequence[Timed]) -> float:
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)
