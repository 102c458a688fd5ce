"""What a study found, as a table for people and for spreadsheets."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.profile import Profile
from tuning.statistics import pareto_front
from tuning.study.trial_record import TrialRecord, is_measured, worker_of

COLUMNS = (
    "trial",
    "config",
    "predicted",
    "formula",
    "measured",
    "low",
    "high",
    "median",
    "tokens/s",
    "ar tokens/s",
    "to the answer's end",
    "acceptance",
    "tokens per pass",
    "agreement",
    "drift",
    "score",
    "front",
    "prompts",
    "state",
)


BRIEF = ("trial", "config", "predicted", "measured", "low", "high", "tokens/s", "acceptance", "score", "state")
_WIDE = 160  # characters that BRIEF needs; COLUMNS need half as many again


def feasible(trial: FrozenTrial) -> bool:
    """Whether the trial was measured to its end and kept every limit."""
    return trial.state == TrialState.COMPLETE and all(excess <= 0 for excess in trial.constraints.values())


def best_first(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The usable trials by measured ratio."""
    return sorted(filter(feasible, trials), key=lambda trial: -TrialRecord.of(trial).speed.ratio)


def front(trials: Sequence[FrozenTrial], by_drift: bool = False) -> set[int]:
    """Numbers of the usable trials that no other beats in speed without losing score, or drifting more (Pareto front)."""
    usable = list(filter(feasible, trials))
    records = [TrialRecord.of(trial) for trial in usable]
    best = pareto_front([(one.speed.ratio, -one.speed.mean_drift if by_drift else one.score.value) for one in records])
    return {trial.number for trial, on_front in zip(usable, best) if on_front}


def median_error(trials: Sequence[FrozenTrial], name: str = "predicted_ratio") -> float:
    """Median of |predicted / measured - 1|; NaN without a finished trial. `name`: which prediction."""
    records = [TrialRecord.of(trial) for trial in trials if is_measured(trial)]
    errors = [abs(getattr(record, name) / record.speed.ratio - 1) for record in records]
    return statistics.median(errors) if errors else math.nan


def measured_by(trials: Sequence[FrozenTrial]) -> dict[str, list[int]]:
    """worker -> numbers of its trials"""
    workers = sorted({worker_of(trial) for trial in trials})
    return {worker: [trial.number for trial in trials if worker_of(trial) == worker] for worker in workers}


def rows(trials: Sequence[FrozenTrial], tier_names: Sequence[str]) -> list[dict[str, str]]:
    """One dict of COLUMNS per finished trial, fastest first."""
    ordered = sorted(filter(is_measured, trials), key=lambda trial: -TrialRecord.of(trial).speed.ratio)
    best = front(trials)
    return [_row(trial, tier_names, trial.number in best) for trial in ordered]


def _row(trial: FrozenTrial, tier_names: Sequence[str], on_front: bool) -> dict[str, str]:
    record = TrialRecord.of(trial)
    seen, score = record.speed, record.score
    low, high = seen.ratio_interval
    state = {
        TrialState.COMPLETE: "measured"
        if feasible(trial)
        else "breaks " + ", ".join(name for name, excess in trial.constraints.items() if excess > 0)
    }.get(trial.state, trial.state.name.lower())

    def by_tier(values: Mapping[int, float]) -> str:
        return " ".join(f"{tier_names[tier]} {value:.2f}" for tier, value in values.items())

    values = (
        str(trial.number),
        label(record.config, tier_names),
        f"{record.predicted_ratio:.2f}",
        f"{record.formula_ratio:.2f}",
        f"{seen.ratio:.2f}",
        f"{low:.2f}",
        f"{high:.2f}",
        f"{seen.ratio_median:.2f}",
        f"{seen.tokens_per_second:.1f}",
        f"{seen.ar_tokens_per_second:.1f}",
        f"{seen.answer_ratio:.2f}",
        by_tier(seen.acceptance),
        by_tier(seen.acceptance_length),
        f"{seen.agreement:.2f}",
        f"{seen.mean_drift:.3g}",
        "" if score is None else f"{score.value:.2f} ({score.low:.2f}-{score.high:.2f})",
        "*" if on_front else "",
        str(seen.prompts),
        state,
    )
    return dict(zip(COLUMNS, values))


def label(config: PyramidConfig, tier_names: Sequence[str]) -> str:
    """A config in words: `lookup > target, length 8`."""
    names = [
        " or ".join(tier_names[tier] for tier in (entry if isinstance(entry, tuple) else (entry,)))
        for entry in config.route
    ]
    stages = [config.stage(tier) for tier in config.route[1:]]
    text = " > ".join(names)
    if stages:
        text += f", length {', '.join(str(stage.length) for stage in stages)}"
        if any(stage.tau for stage in stages):
            text += f", tau {', '.join(f'{stage.tau:.3g}' for stage in stages)}"
    return text


def print_table(title: str, table_rows: Sequence[dict[str, str]]) -> None:
    """The table on stdout: all columns where there is room, else BRIEF."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    columns = COLUMNS if console.width >= 1.5 * _WIDE else BRIEF
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_text = column in ("config", "acceptance", "tokens per pass", "state")
        table.add_column(column, justify="left" if is_text else "right")
    for row in table_rows:
        table.add_row(*(row[column] for column in columns))
    console.print(table)


def write_csv(path: Path, table_rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(table_rows)


def write_markdown(path: Path, title: str, table_rows: Sequence[dict[str, str]], notes: Sequence[str]) -> None:
    lines = [f"# {title}", "", "| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    lines += ["| " + " | ".join(row[column] for column in COLUMNS) + " |" for row in table_rows]
    path.write_text("\n".join([*lines, "", *notes, ""]), encoding="utf-8")


def summary(profile: Profile, errors: Mapping[str, float], steps: Sequence[tuple[str, float, float]]) -> list[str]:
    """What to say below the table: the winner, the score, the predictions' errors, time and memory of each step."""
    seen, study = profile.measured, profile.study
    score, found = seen["score"], label(PyramidConfig.from_dict(study["best_config"]), profile.tiers)
    interval = study["best_speed_ratio_interval"]
    ratio = f"{study['best_speed_ratio']:.2f} x target-only decoding "
    ratio += "(one question: no interval" if interval is None else "({:.2f} to {:.2f}".format(*interval)
    ratio += f"; {seen['prompts']} prompts, {study['measured_on']})"
    if study["gain_shown"]:
        best = f"best: {found}: {ratio}, {seen['tokens_per_second']:.1f} tokens/s"
    else:
        best = (
            f"no gain shown: the best config found, {found}, reaches {ratio}; the profile keeps target-only decoding, "
            f"{seen['tokens_per_second']:.1f} tokens/s"
        )
    if "speed_ratio_hf" in seen:
        best += f", {seen['speed_ratio_hf']:.2f} x Hugging Face generate"
    for name, other in seen.get("speed_ratio_other_targets", {}).items():
        best += f", {other:.2f} x target-only decoding with target {name} (same weights, other kernel)"
    return [
        best + ("" if study["remeasured"] else " (the trial's own numbers, not measured again)"),
        f"score: {score['value']:.3f} (95 % interval {score['low']:.3f} to {score['high']:.3f}, n = {score['n']}), "
        f"{score['label']}",
        f"median error of the predicted ratios: replay {errors['predicted']:.1%}, formula {errors['formula']:.1%}",
        *(f"{name}: {seconds:.1f} s, peak memory so far {peak:.0f} MB" for name, seconds, peak in steps),
    ]
