"""Does the prior help, in wall-clock time? Studies of three kinds on the real models, every trial timed against target-only decoding.

    python -m tuning.traces --task csqa gsm8k humaneval spec_bench --limit 8 --out one.npz     # for the prior
    python -m benchmarks.prior_help_clock --prior one.npz [--task gsm8k] [--seeds 3] [--trials 20] [--questions 3] [--tokens 32]

For every seed the kinds "ours", "tpe" and "random" (as in prior_help.py) run --trials trials each, on the same questions, none
of which the prior has seen. Trials are few tokens and therefore noisy, so a study is judged by what it would have handed out:
the configs that were its best so far at some time, and the prior's first three, are measured once more, in turn, on other
questions. Columns: trials until the study's best so far was within 3 % of the best of all that were measured again (median
and largest; a study that never was counts as one trial more than it had), and how fast what it ended with is over that best.
The best of all 292 configs has not been timed: it may be better than the best that any study found.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import optuna
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid import AdaptivePyramid, families
from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import resolve
from adaptive_pyramid.prompts import prompt_ids
from benchmarks.prior_help import CLOSE, SAMPLERS, make_study, measured_trial
from tuning.study.benchmark import Bench, in_rotation
from tuning.study.prior import Prior
from tuning.study.search_space import SearchSpace
from tuning.study.trial_record import TrialRecord
from tuning.tasks.task import load_task
from tuning.traces.format import TraceSet


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prior", type=Path, required=True, help="traces for the prior")
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--data", help="the task's public file, if the traces used one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument(
        "--questions", type=int, default=3, help="per trial; twice as many when configs are measured again"
    )
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args(arguments)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        traces, task = TraceSet.load(options.prior), load_task(options.task, data=options.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    traces = traces.select(indices=[i for i, trace in enumerate(traces) if trace.task == options.task])
    seen = {trace.example for trace in traces}
    fresh = [example for example in task.examples if example.id not in seen]
    if not seen or len(fresh) < 3 * options.questions:
        parser.error(
            f"task {options.task!r}: {len(seen)} questions in the traces and {len(fresh)} others; expected some, and at "
            f"least {3 * options.questions} others"
        )

    family, method = families.load(options.family), resolve("pyramid")
    bench = Bench(AdaptivePyramid(family), method, options.tokens)
    prior = Prior(traces, traces.header.costs, method)
    space = SearchSpace.of(method, len(family.models), bench.pyramid.pool().routes())
    first_of_prior = prior.ranked(space.candidates())[:3]
    needed: dict[str, list[int]] = {name: [] for name in SAMPLERS}
    reached: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("trials", total=options.seeds * len(SAMPLERS) * options.trials)
        for seed in range(options.seeds):
            drawn = random.Random(seed).sample(fresh, 3 * options.questions)
            prompts = [prompt_ids(family.tokenizer, example.messages()) for example in drawn]

            def measure(config: PyramidConfig) -> float:
                turns = [
                    in_rotation([lambda: bench.ar_at_its_pace(prompt), lambda: bench.run(prompt, config)], turn)
                    for turn, prompt in enumerate(prompts[: options.questions])
                ]
                progress.advance(bar)
                return sum(alone.seconds for alone, _ in turns) / sum(own.seconds for _, own in turns)

            leaders = {}  # per kind, the best so far after every trial
            for name in SAMPLERS:
                study = make_study(name, space, prior, seed)
                study.optimize(lambda trial: measured_trial(trial, space, prior, measure), n_trials=options.trials)
                best = [max(study.trials[: n + 1], key=lambda trial: trial.value) for n in range(options.trials)]
                leaders[name] = [TrialRecord.of(trial).config.normalized() for trial in best]
            again = list(dict.fromkeys([*first_of_prior, *(config for found in leaders.values() for config in found)]))
            seconds = dict.fromkeys(again, 0.0)
            for turn, prompt in enumerate(progress.track(prompts[options.questions :], description="once more")):
                runs = in_rotation([lambda config=config: bench.run(prompt, config) for config in again], turn)
                for config, timed in zip(again, runs):
                    seconds[config] += timed.seconds
            least = min(seconds.values())
            for name, found in leaders.items():
                close = [least / seconds[config] >= CLOSE for config in found]
                needed[name].append(close.index(True) + 1 if any(close) else options.trials + 1)
                reached[name].append(least / seconds[found[-1]])
    table = Table("", *SAMPLERS, title=f"{options.task}, {options.seeds} seeds, wall-clock time")
    table.add_row("trials", *(f"{statistics.median(needed[name]):g} ({max(needed[name])})" for name in SAMPLERS))
    table.add_row("ends at, of the best", *(", ".join(f"{share:.3f}" for share in reached[name]) for name in SAMPLERS))
    Console().print(table)


if __name__ == "__main__":
    main()
