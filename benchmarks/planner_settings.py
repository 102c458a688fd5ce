"""What the planner's constants are worth: each of `PlannerSettings` halved and doubled, on the control laboratory.

    python -m benchmarks.planner_settings                     # the table in docs/control.md; under 10 minutes of one core
    python -m benchmarks.planner_settings --fields memory optimism --seeds 8

Every environment of control_lab.py from a cold start, and three of them with a warm start that is right, or that comes
from another text, all in modelled time and from fixed seeds, so that the table repeats to the last digit. A number is
the change of speed against the default settings on the same streams, in %: the mean over environments, its standard
error over seeds, and the environment that loses most.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.factory import default_config, make_controller
from adaptive_pyramid.control.planner import PlannerController
from adaptive_pyramid.control.planner_settings import DEFAULT_SETTINGS, PlannerSettings
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.control.warm_start import WarmStart
from adaptive_pyramid.throughput import Acceptance, CostModel

from .control_lab import CASES, Case, play

# Name -> (environment, what a warm start says of (draft, qualifier), (draft, target) and (qualifier, target)).
WARM = {
    "good draft, warm": ("good draft", (0.75, 0.75, 0.9)),
    "bursty, warm": ("bursty", (0.7, 0.7, 0.85)),
    "weak draft, warm from another text": ("weak draft", (0.75, 0.75, 0.95)),
}
WHOLE = ("min_horizon", "replan_every", "early_blocks")
SHARES = ("tuned_factor", "indirect_weight", "changed_keep", "changed_keep_others")


def scaled(field: str, factor: float) -> PlannerSettings:
    """The default settings with one field halved or doubled. Shares end at 1; `context_fade` is squared or rooted."""
    value = getattr(DEFAULT_SETTINGS, field)
    if field == "context_fade":
        value = tuple(share ** (1 / factor) for share in value)
    elif isinstance(value, tuple):
        value = tuple(factor * edge for edge in value)
    elif field in WHOLE:
        value = max(1, round(factor * value))
    else:
        value = min(1.0, factor * value) if field in SHARES else factor * value
    return replace(DEFAULT_SETTINGS, **{field: value})


def controller(case: Case, settings: PlannerSettings, known: tuple[float, float, float] | None) -> PlannerController:
    n_tiers = case.target + 1
    pool = Pool(n_tiers, tuple(sorted(case.costs)), CostModel(case.costs), measured=True)
    if known is not None:
        pairs = dict(zip(((0, 1), (0, 2), (1, 2)), map(Acceptance, known)))
        pool = replace(pool, warm_start=WarmStart(pairs, 10.0, PyramidConfig.simple([4, 8])))
    arms = make_controller("planner", None, default_config(n_tiers), pool, case.drift_budget).arms
    return PlannerController(arms, pool, case.drift_budget, settings=settings)


def log_speeds(settings: PlannerSettings, seed: int) -> dict[str, float]:
    """{environment: log tokens/s} of the planner under `settings`."""
    cases = {name: (case, None) for name, case in CASES.items()}
    cases |= {name: (CASES[case], known) for name, (case, known) in WARM.items()}
    found = {}
    for name, (case, known) in cases.items():
        outcome = play(case, controller(case, settings, known), seed)
        found[name] = math.log(outcome.tokens / outcome.seconds)
    return found


def change(speeds: list[dict[str, float]], base: list[dict[str, float]]) -> tuple[float, float, float, str]:
    """(mean change in %, its standard error over seeds, the worst environment's mean change, its name)."""
    by_seed = [statistics.mean(ours[name] - theirs[name] for name in ours) for ours, theirs in zip(speeds, base)]
    error = statistics.stdev(by_seed) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else math.nan
    by_case = {
        name: statistics.mean(ours[name] - theirs[name] for ours, theirs in zip(speeds, base)) for name in base[0]
    }
    worst = min(by_case, key=by_case.__getitem__)
    return 100 * statistics.mean(by_seed), 100 * error, 100 * by_case[worst], worst


def rows(names: list[str], seeds: int, workers: int) -> Iterator[tuple[str, str, tuple[float, float, float, str]]]:
    """(field, "half" or "double", change), as they are finished."""
    with ProcessPoolExecutor(workers) as pool:
        base = list(pool.map(log_speeds, [DEFAULT_SETTINGS] * seeds, range(seeds)))
        for name in names:
            for title, factor in (("half", 0.5), ("double", 2.0)):
                speeds = list(pool.map(log_speeds, [scaled(name, factor)] * seeds, range(seeds)))
                yield name, title, change(speeds, base)


def main(arguments: list[str] | None = None) -> None:
    known = [field.name for field in fields(PlannerSettings)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", nargs="+", choices=known, default=known, metavar="FIELD", help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="streams per environment (default: 3)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args(arguments)
    for field in ("seeds", "workers"):
        if getattr(options, field) < 1:
            parser.error(f"--{field} must be at least 1, got {getattr(options, field)}")
    console = Console()
    table = Table(title=f"speed against the default settings, %, {len(CASES) + len(WARM)} environments")
    for column in ("field", "default", "half", "worst", "double", "worst"):
        table.add_column(column)
    cells: dict[str, list[str]] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=2 * len(options.fields))
        for name, _, (mean, error, worst, where) in rows(options.fields, options.seeds, options.workers):
            cells.setdefault(name, []).extend((f"{mean:+.1f} ± {error:.1f}", f"{worst:+.1f} ({where})"))
            progress.update(bar, advance=1, description=name)
    for name, row in cells.items():
        table.add_row(name, str(getattr(DEFAULT_SETTINGS, name)), *row)
    console.print(table)


if __name__ == "__main__":
    main()
