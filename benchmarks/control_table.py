"""Which control should be the default: all of them on recorded answers, against the best static config found afterwards.

    python -m tuning.traces --task csqa gsm8k humaneval spec_bench --limit 12 --out traces.npz
    python -m benchmarks.control_table --traces traces.npz [--costs gpu-24gb --cost-rows 1b,8b] [--out table.md]
    python -m benchmarks.control_table --traces traces.npz --clock 4       # in wall-clock time, 4 answers of each task

A stream is a task's answers one after the other, or all tasks' in turn (mixed); a controller outlives the prompts of its
stream and starts knowing nothing: guessed acceptance, guessed costs, its exploration counted. Static configs are tried
exhaustively: every route, every length of `tuning.research.findings_page.LENGTHS`. The first row names the best one of each stream and
its speed over target-only decoding. Then, for every control, its share of that speed (1 = as fast as the best static configfound afterwards), and in brackets the blocks until it has settled: until 9 of 10 of the next 50 run a config within 5 % of the
best one's speed (median over orders). Modelled time unless --clock.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from adaptive_pyramid.config import PyramidConfig, StageConfig
from adaptive_pyramid.control.controller import Controller, FixedController
from adaptive_pyramid.control.factory import CONTROLS, default_config, make_controller
from adaptive_pyramid.control.planner import PlannerController
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.control.warm_start import WarmStart
from adaptive_pyramid.throughput import Acceptance, CostModel
from benchmarks.control_lab import HeuristicSchedule, settled_after
from tuning.replay.engine import Replay
from tuning.replay.what_if_costs import load_costs
from tuning.research.findings_page import grid
from tuning.traces.format import TraceSet

TOKENS = 512  # that a family's agreement is measured on
KNOWN, OWN_BLOCKS, HEURISTIC, DEFAULT = (
    "planner, agreement known",
    "planner, own blocks only",
    "Hugging Face heuristic",
    "default config, static",
)
NAMES = [
    "planner",
    KNOWN,
    OWN_BLOCKS,
    *[name for name in CONTROLS if name not in ("fixed", "auto", "bandit", "planner")],
    HEURISTIC,
    DEFAULT,
]


def build(name: str, replay: Replay, agreement: Sequence[float]) -> Controller:
    """A controller that starts cold: it is told forward times in the proportion of one-token forwards, and no more.

    KNOWN is also told the `agreement` of the models below the target, as the pyramid of a family with derived tiers is.
    """
    header = replay.header
    n_tiers = len(header.tiers)
    guess = CostModel(
        {
            tier: {width: replay.costs.seconds(tier, 1) * (1 + width / 128) for width in (1, 8, 64)}
            for tier in header.models
        }
    )
    pool = Pool(n_tiers, header.models, guess, measured=False)
    if name == DEFAULT:
        return FixedController(default_config(n_tiers))
    if name == HEURISTIC:
        return HeuristicSchedule(
            PyramidConfig(tuple(StageConfig(5) for _ in range(n_tiers - 1)), (n_tiers - 2, n_tiers - 1))
        )
    if name == OWN_BLOCKS:
        return PlannerController(
            make_controller("planner", None, default_config(n_tiers), pool).arms, pool, counterfactual=False
        )
    if name == KNOWN:
        known = {(tier, header.target): Acceptance(share) for tier, share in zip(header.models, agreement)}
        pool = replace(pool, warm_start=WarmStart(known, TOKENS * replay.costs.seconds(header.target, 1)))
        name = "planner"
    return make_controller(name, None, default_config(n_tiers), pool)


def streams(traces: TraceSet, seed: int) -> dict[str, list[int]]:
    """Task, or "mixed" -> indices of its traces, shuffled; mixed: one of every task in turn."""
    rng = random.Random(seed)
    of_task = {task: [i for i, trace in enumerate(traces) if trace.task == task] for task in traces.tasks}
    for indices in of_task.values():
        rng.shuffle(indices)
    longest = max(map(len, of_task.values()))
    mixed = [indices[turn] for turn in range(longest) for indices in of_task.values() if turn < len(indices)]
    return {**of_task, **({"mixed": mixed} if len(of_task) > 1 else {})}


class Statics:
    """Modelled seconds of every answer under fixed configs, computed once per config."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._known: dict[PyramidConfig, np.ndarray] = {}

    def seconds(self, config: PyramidConfig, indices: Sequence[int]) -> float:
        if config not in self._known:
            self._known[config] = self._replay.play(config).by_trace["seconds"]
        return float(self._known[config][list(indices)].sum())


def play(replay: Replay, indices: Sequence[int], controller: Controller) -> tuple[float, list[PyramidConfig]]:
    """Modelled seconds of a stream, and the config of every block."""
    seconds, configs = 0.0, []
    for index in indices:
        environment = replay.environment(index)
        control = controller.begin(environment.info)
        while not environment.finished:
            configs.append(control.choose().config)
            control.observe(environment.step(configs[-1]))
        seconds += environment.seconds
    return seconds, configs


def modelled(
    replay: Replay, seeds: int, agreement: Sequence[float], console: Console
) -> tuple[dict[str, PyramidConfig], dict[str, list[str]]]:
    """(stream -> best static config, control -> cells of the table), the controls by their share of the last stream"""
    traces, statics = replay.traces, Statics(replay)
    configs = grid(traces)
    names = list(streams(traces, 0))
    controls = [name for name in NAMES if agreement or name != KNOWN]
    shares = {name: {stream: [] for stream in names} for name in controls}
    settled = {name: {stream: [] for stream in names} for name in controls}
    best: dict[str, PyramidConfig] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("static configs", total=len(configs))
        for config in configs:
            statics.seconds(config, range(len(traces)))
            progress.advance(bar)
        bar = progress.add_task("controllers", total=seeds * len(names) * len(controls))
        for seed in range(seeds):
            for stream, indices in streams(traces, seed).items():
                best[stream] = min(configs, key=lambda config: statics.seconds(config, indices))
                least = statics.seconds(best[stream], indices)
                for name in controls:
                    seconds, run = play(replay, indices, build(name, replay, agreement))
                    speeds = {config: 1 / statics.seconds(config, indices) for config in {*run, best[stream]}}
                    shares[name][stream].append(least / seconds)
                    settled[name][stream].append(settled_after(run, speeds))
                    progress.advance(bar)
    alone = replay.play(configs[0]).by_trace["ar_seconds"]
    rows = {
        f"best of {len(configs)} static configs": [
            f"{config.label}: {alone[streams(traces, 0)[stream]].sum() / statics.seconds(config, streams(traces, 0)[stream]):.2f}"
            for stream, config in best.items()
        ]
    }
    for name in sorted(controls, key=lambda name: -statistics.mean(shares[name][names[-1]])):
        rows[name] = [
            f"{statistics.mean(shares[name][stream]):.3f} ({statistics.median(settled[name][stream]):.0f})"
            for stream in names
        ]
    return best, rows


def clocked(
    replay: Replay, per_task: int, best: PyramidConfig, agreement: Sequence[float], console: Console
) -> dict[str, dict[str, float]]:
    """control -> stream -> tokens/s over target-only decoding, on the mixed stream's first prompts, in wall-clock time."""
    from adaptive_pyramid import AdaptivePyramid  # torch takes seconds to load, and only this part needs it

    pyramid = AdaptivePyramid.from_family(replay.header.family, control="fixed")
    traces = replay.traces
    indices = streams(traces, 0)["mixed"][: per_task * len(traces.tasks)]
    runs = {"target only": FixedController(best.with_route((best.target,))), "best static": FixedController(best)}
    runs |= {name: build(name, replay, agreement) for name in NAMES if agreement or name != KNOWN}
    seconds: dict[str, dict[int, float]] = {name: {} for name in runs}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("in wall-clock time", total=len(indices) * len(runs))
        for turn, index in enumerate(indices):
            trace, names = traces[index], list(runs)
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                pyramid.clear_caches()
                started = time.perf_counter()
                pyramid.generate(
                    trace.prompt.tolist(), max_new_tokens=len(trace), eos_token_id=None, control=runs[name]
                )
                seconds[name][index] = time.perf_counter() - started
                progress.advance(bar)
    alone = seconds["target only"]
    kinds = {task: [i for i in indices if traces[i].task == task] for task in traces.tasks} | {"mixed": indices}
    return {
        name: {kind: sum(alone[i] for i in own) / sum(timed[i] for i in own) for kind, own in kinds.items()}
        for name, timed in seconds.items()
        if name != "target only"
    }


def markdown(title: str, columns: Sequence[str], rows: dict[str, Sequence[str]]) -> str:
    lines = [title, "", "| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()), ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="file of `python -m tuning.traces`")
    parser.add_argument("--costs", help="what-if cost table instead of the measured one: gpu-24gb, or a YAML file")
    parser.add_argument("--cost-rows", help="its rows for the models, draft first: 1b,8b")
    parser.add_argument(
        "--agreement",
        type=float,
        nargs="*",
        default=[],
        metavar="SHARE",
        help="of each model below the target, as `families.load(...).tiers` reports it: adds a row",
    )
    parser.add_argument("--seeds", type=int, default=3, help="orders of every stream (default: 3)")
    parser.add_argument(
        "--clock", type=int, default=0, metavar="N", help="also in wall-clock time, N answers of each task"
    )
    parser.add_argument("--out", type=Path, help="write the tables there, too")
    options = parser.parse_args(arguments)
    if options.clock and options.costs:
        parser.error("--clock runs on this machine, --costs describes another one: give one of them")
    costs = (
        load_costs(options.costs, options.cost_rows.split(",") if options.cost_rows else None)
        if options.costs
        else None
    )
    try:
        replay = Replay(TraceSet.load(options.traces), costs, overhead=0.0 if costs else 0.001)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    console = Console(stderr=True)
    best, rows = modelled(replay, options.seeds, options.agreement, console)
    columns = list(best)
    text = markdown(f"{replay.costs_label}, {len(replay.traces)} answers, {replay.traces.tokens} tokens", columns, rows)
    if options.clock:
        timed = clocked(replay, options.clock, best[columns[-1]], options.agreement, console)
        text += "\n" + markdown(
            f"Wall-clock time, {options.clock} answers of each task: tokens/s over target-only decoding",
            columns,
            {name: [f"{row[stream]:.2f}" for stream in columns] for name, row in timed.items()},
        )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
