"""Does the prior help? Trials until a study comes within 3 % of the exhaustive grid's best, in modelled time.

    python -m tuning.traces --task csqa gsm8k humaneval spec_bench --limit 12 --out one.npz      # two processes, so that
    python -m tuning.traces --task csqa gsm8k humaneval spec_bench --limit 12 --out other.npz    # cost tables differ
    python -m benchmarks.prior_help --prior one.npz --objective other.npz [--seeds 10] [--trials 100]

For every seed a task's answers are divided into two halves: one, with the cost table of its process, makes the prior; the
other, with the other process's table, is what is optimised. "ours" queues the prior's picks and goes on with the sampler
`gp`, as `tuning.search` does; "tpe" and "random" start without a prior. Median (and largest) number of trials; a study that
has not come so far by --trials counts as that many.
"""

from __future__ import annotations

import argparse
import random
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.decoding.method import resolve
from tuning.replay.engine import Replay
from tuning.study.prior import Prior
from tuning.study.runner import PRIOR_SHARE
from tuning.study.sampler import PriorSampler
from tuning.study.search_space import SearchSpace
from tuning.study.trial_record import SpeedSummary, TrialRecord
from tuning.traces.format import TraceSet

CLOSE = 0.97
QUEUED = round(12 * PRIOR_SHARE)  # what a study of the default 12 trials queues
SAMPLERS = ("ours", "tpe", "random")


def halves(one: TraceSet, other: TraceSet, task: str, seed: int) -> tuple[TraceSet, TraceSet]:
    """Answers of `task` for the prior, and other questions' answers for the objective."""
    questions = sorted(
        {trace.example for trace in one if trace.task == task}
        & {trace.example for trace in other if trace.task == task}
    )
    chosen = set(random.Random(seed).sample(questions, len(questions) // 2))

    def take(traces: TraceSet, inside: bool) -> TraceSet:
        return traces.select(
            indices=[
                i
                for i, trace in enumerate(traces)
                if trace.task == task and trace.example in questions and (trace.example in chosen) is inside
            ]
        )

    return take(one, True), take(other, False)


def make_study(sampler: str, space: SearchSpace, prior: Prior, seed: int) -> optuna.Study:
    """A study of one of `SAMPLERS`, with the prior's picks queued if it is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        chosen = {
            "ours": lambda: PriorSampler(space, prior, seed=seed),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True),
        }[sampler]()
    study = optuna.create_study(direction="maximize", sampler=chosen)
    if sampler == "ours":
        for config in prior.picks(space.candidates(), QUEUED):
            study.enqueue_trial(space.params(config))
    return study


def measured_trial(
    trial: optuna.Trial, space: SearchSpace, prior: Prior, measure: Callable[[PyramidConfig], float]
) -> float:
    """The ratio of the config that `trial` suggests, with what our sampler reads beside it."""
    config = space.suggest(trial)
    ratio = measure(config)
    TrialRecord(config, prior.predict(config).ratio, speed=SpeedSummary(ratio)).store(trial)
    return ratio


def trials_needed(
    sampler: str, space: SearchSpace, prior: Prior, objective: Replay, goal: float, seed: int, most: int
) -> int:
    """Trials of a study until one reaches `goal`; `most` if none did."""
    study = make_study(sampler, space, prior, seed)

    def stop_when_close(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.value >= goal:
            study.stop()

    study.optimize(
        lambda trial: measured_trial(trial, space, prior, lambda config: ratio(objective, config)),
        n_trials=most,
        callbacks=[stop_when_close],
    )
    return len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))  # not those still queued


def ratio(objective: Replay, config: PyramidConfig) -> float:
    return objective.play(config.normalized()).ratio_to_ar


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prior", type=Path, required=True, help="traces for the prior")
    parser.add_argument(
        "--objective", type=Path, required=True, help="traces of the same tasks, recorded by another process"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100, help="most trials of a study (default: %(default)s)")
    options = parser.parse_args(arguments)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        one, other = TraceSet.load(options.prior), TraceSet.load(options.objective)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    tasks = [task for task in one.tasks if task in other.tasks]
    method, header = resolve("pyramid"), one.header
    pool = Pool(len(header.tiers), header.models, header.costs, measured=True)
    space = SearchSpace.of(method, pool.n_tiers, pool.routes())
    needed = {(task, sampler): [] for task in tasks for sampler in SAMPLERS}
    first = {task: [] for task in tasks}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("studies", total=len(needed) * options.seeds)
        for task in tasks:
            for seed in range(options.seeds):
                known, asked = halves(one, other, task, seed)
                prior, objective = Prior(known, one.header.costs, method), Replay(asked)
                grid = space.candidates()
                best = max(ratio(objective, config) for config in grid)
                first[task].append(ratio(objective, prior.ranked(grid)[0]) / best)
                for sampler in SAMPLERS:
                    needed[task, sampler].append(
                        trials_needed(sampler, space, prior, objective, CLOSE * best, seed, options.trials)
                    )
                    progress.advance(bar)
    table = Table(
        "task",
        *SAMPLERS,
        "the prior's first, of the best",
        title=f"trials to {CLOSE:.0%} of the best of {len(space.candidates())} configs, {options.seeds} seeds",
    )
    for task in tasks:
        cells = [f"{statistics.median(needed[task, sampler]):g} ({max(needed[task, sampler])})" for sampler in SAMPLERS]
        table.add_row(task, *cells, f"{statistics.median(first[task]):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
