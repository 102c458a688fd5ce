"""What a trial stores in Optuna's user attributes. Their names are known here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from adaptive_pyramid.config import PyramidConfig
from tuning.tasks.scorers import Score


@dataclass(frozen=True)
class ScoreSummary:
    """A task score with its 95 % interval, without the scores of single examples; a dict of it stands in profiles."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    label: str = ""

    @classmethod
    def of(cls, score: Score) -> ScoreSummary:
        return cls(score.value, score.low, score.high, score.n, score.label)


@dataclass(frozen=True)
class SpeedSummary:
    """A config's timed runs beside target-only decoding (`ar`) on the same prompts, as plain numbers.

    Args:
        ratio: tokens/s over those of `ar`. ratio_interval: its 95 % interval. ratio_median: median over prompts.
        answer_ratio: the same up to each answer's own end. tokens_per_second, ar_tokens_per_second: speeds.
        prompts, tokens: how many. acceptance, acceptance_length: by verifying tier.
        agreement: share of tokens before the first that differs from `ar`'s, in [0, 1].
        mean_drift: nats per token. seconds: (`ar`, config) of every prompt.
    """

    ratio: float
    ratio_interval: tuple[float, float] = (math.nan, math.nan)
    ratio_median: float = math.nan
    answer_ratio: float = math.nan
    tokens_per_second: float = math.nan
    ar_tokens_per_second: float = math.nan
    prompts: int = 0
    tokens: int = 0
    acceptance: Mapping[int, float] = field(default_factory=dict)
    acceptance_length: Mapping[int, float] = field(default_factory=dict)
    agreement: float = math.nan
    mean_drift: float = math.nan
    seconds: tuple[tuple[float, float], ...] = ()

    def to_attrs(self) -> dict[str, Any]:
        """Plain data for JSON, whose keys are texts."""
        by_tier = {
            name: {str(tier): value for tier, value in getattr(self, name).items()}
            for name in ("acceptance", "acceptance_length")
        }
        return {
            **{entry.name: getattr(self, entry.name) for entry in fields(self)},
            **by_tier,
            "ratio_interval": list(self.ratio_interval),
            "seconds": [list(pair) for pair in self.seconds],
        }

    @classmethod
    def from_attrs(cls, attrs: Mapping[str, Any]) -> SpeedSummary:
        """The inverse of `to_attrs`; what is missing keeps its default."""
        known = {entry.name: attrs[entry.name] for entry in fields(cls) if entry.name in attrs}
        for name in ("acceptance", "acceptance_length"):
            known[name] = {int(tier): value for tier, value in known.get(name, {}).items()}
        if "ratio_interval" in known:
            known["ratio_interval"] = tuple(known["ratio_interval"])
        return cls(**{**known, "seconds": tuple(tuple(pair) for pair in known.get("seconds", ()))})


@dataclass(frozen=True)
class TrialRecord:
    """One trial, from its beginning on.

    Args:
        config: what it runs. predicted_ratio, formula_ratio: the prior's predictions, by replay and by formula.
        worker: who measures it. speed: None until it was measured, in full or until it was pruned.
        score: the task score; None for pruned trials. score_loss: what the score lost against `ar` on the same
            questions, with its 95 % interval (value, low, high).
    """

    config: PyramidConfig
    predicted_ratio: float
    formula_ratio: float = math.nan
    worker: str = ""
    speed: SpeedSummary | None = None
    score: ScoreSummary | None = None
    score_loss: tuple[float, float, float] | None = None

    def to_attrs(self) -> dict[str, Any]:
        """Plain data for JSON; what is None is left out."""
        attrs: dict[str, Any] = {
            "config": self.config.to_dict(),
            "predicted_ratio": self.predicted_ratio,
            "formula_ratio": self.formula_ratio,
            "worker": self.worker,
        }
        if self.speed is not None:
            attrs |= self.speed.to_attrs()
        if self.score is not None:
            attrs["score"] = asdict(self.score)
        if self.score_loss is not None:
            attrs["score_loss"] = list(self.score_loss)
        return attrs

    @classmethod
    def from_attrs(cls, attrs: Mapping[str, Any]) -> TrialRecord:
        """The inverse of `to_attrs`; reads what earlier versions stored, too."""
        return cls(
            PyramidConfig.from_dict(attrs["config"]),
            attrs["predicted_ratio"],
            attrs.get("formula_ratio", math.nan),
            attrs.get("worker", ""),
            SpeedSummary.from_attrs(attrs) if "ratio" in attrs else None,
            ScoreSummary(**attrs["score"]) if "score" in attrs else None,
            tuple(attrs["score_loss"]) if "score_loss" in attrs else None,
        )

    @classmethod
    def of(cls, trial: FrozenTrial) -> TrialRecord:
        return cls.from_attrs(trial.user_attrs)

    def store(self, trial: optuna.Trial) -> None:
        """Write what the trial does not hold yet."""
        known = trial.user_attrs
        for name, value in self.to_attrs().items():
            if known.get(name) != value:
                trial.set_user_attr(name, value)


def is_measured(trial: FrozenTrial) -> bool:
    """Whether the trial was measured, in full or until it was pruned."""
    return "ratio" in trial.user_attrs


def worker_of(trial: FrozenTrial) -> str:
    """Who measures the trial; "" of one that has not begun."""
    return trial.user_attrs.get("worker", "")
