"""A config's timed runs beside target-only ones on the same prompts, and the time that it saves over them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adaptive_pyramid.stats import BlockStats, GenerationStats
from tuning.statistics import Interval, standing_apart, time_ratio
from tuning.study.benchmark import Timed
from tuning.study.trial_record import SpeedSummary


@dataclass
class PairedTimings:
    """Pairs of runs, in the order they were added.

    Args:
        answer_tokens: how long the target's own answer is. question: which question a prompt is a turn of.
    """

    ar: list[Timed] = field(default_factory=list)
    own: list[Timed] = field(default_factory=list)
    answer_tokens: list[int] = field(default_factory=list)
    question: list[int] = field(default_factory=list)

    def add(self, ar: Timed, own: Timed, answer_tokens: int, question: int | None = None) -> None:
        """One prompt's pair. `question` None: a question of its own."""
        self.ar.append(ar)
        self.own.append(own)
        self.answer_tokens.append(answer_tokens)
        self.question.append(len(self.question) if question is None else question)

    @property
    def gain(self) -> Interval:
        """Time of target-only decoding over the config's for the same text: all prompts, none left out.

        The interval is over questions: turns of one chat are alike, so they count as one.
        """
        totals: dict[int, list[float]] = {}
        for question, ar, own in zip(self.question, self.ar, self.own):
            pair = totals.setdefault(question, [0.0, 0.0])
            pair[0] += ar.seconds
            pair[1] += own.seconds * ar.tokens / own.tokens
        return time_ratio(*zip(*totals.values()))

    def settle(self, again: Callable[[int], tuple[Timed, Timed]]) -> int:
        """Time twice more, by `again`(index), each prompt whose ratio stands apart; -> how many did.

        The run of median time of the three stays. A second that the machine spent on something else goes, and a prompt
        that truly gains more than the others keeps its gain, which leaving prompts out would lose.
        """
        apart = standing_apart([math.log(ratio) for ratio in self._ratios()])
        for index in apart:
            pairs = [(self.ar[index], self.own[index]), again(index), again(index)]
            self.ar[index], self.own[index] = (
                sorted(runs, key=lambda run: run.seconds / run.tokens)[1] for runs in zip(*pairs)
            )
        return len(apart)

    def _ratios(self) -> list[float]:
        return [own.tokens_per_second / ar.tokens_per_second for ar, own in zip(self.ar, self.own)]

    def summary(self) -> SpeedSummary:
        """What a trial stores of these runs. With one question `ratio_interval` is NaN."""
        stats = GenerationStats(blocks=[block for run in self.own for block in _blocks(run)])
        tested = [stage for stage in stats.stages if stage.accepted + stage.rejected]
        gain = self.gain
        until_end = [
            (ar.seconds_until(tokens), own.seconds_until(tokens))
            for ar, own, tokens in zip(self.ar, self.own, self.answer_tokens)
        ]
        return SpeedSummary(
            ratio=gain.value,
            ratio_interval=(gain.low, gain.high),
            ratio_median=statistics.median(self._ratios()),
            answer_ratio=sum(a for a, _ in until_end) / sum(b for _, b in until_end),
            tokens_per_second=tokens_per_second(self.own),
            ar_tokens_per_second=tokens_per_second(self.ar),
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


def tokens_per_second(runs: Sequence[Timed]) -> float:
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def _blocks(run: Timed) -> list[BlockStats]:
    return run.stats.blocks if run.stats is not None else []
