"""Control laboratory: every controller on simulated environments, against the best static config found afterwards.

    python -m benchmarks.control_lab                                   # all environments, all controllers
    python -m benchmarks.control_lab --seeds 5 --environments useless shifting --controls planner thompson
    python -m benchmarks.control_lab --out lab/                        # and lab/control_lab.json

An environment has given forward times and tiers that agree with the target at given rates; a stream of requests runs through one
controller that starts knowing nothing but guesses, its exploration counted. Everything is in modelled time. (With recorded
answers of real models instead of environments: control_table.py.) Columns:

    speed         tokens/s over target-only decoding
    of best       share of the speed of the best static arm, found afterwards on the same stream
    settles       blocks until 9 of 10 of the next 50 run an arm within 5 % of the best one's speed (median over seeds)
    lost          largest excess over target-only decoding at any block, in tokens of target-only decoding
    budget        largest overdraft of what the exploration budget allows (2 % of elapsed time and one shortest probe), same unit
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig, StageConfig
from adaptive_pyramid.control.controller import Controller, FixedController, RequestInfo
from adaptive_pyramid.control.factory import CONTROLS, Pool, default_config, make_controller
from adaptive_pyramid.control.planner import PlannerController
from adaptive_pyramid.stats import BlockStats, Decision
from adaptive_pyramid.throughput import WIDTHS, CostModel
from tests.simulated import Regime, SimulatedEnvironment, run

PROMPT, TOKENS = 64, 250


def row(first: float, slope: float) -> dict[int, float]:
    """Seconds of a forward of m tokens: `first` for one, `slope` of it more for each further one."""
    return {width: first * (1 + slope * (width - 1)) for width in WIDTHS}


FLAT = {0: row(0.004, 0.01), 1: row(0.012, 0.01), 2: row(0.040, 0.01)}  # bound by memory bandwidth
STEEP = {0: row(0.010, 0.05), 1: row(0.020, 0.06), 2: row(0.040, 0.08)}  # bound by arithmetic
LOOKUP = {1: row(0.006, 0.02), 2: row(0.040, 0.03)}  # tier 0 looks up


@dataclass(frozen=True)
class Case:
    """An environment and a stream of requests.

    Args:
        regimes: what the text is like. requests: how many, one after the other.
    """

    costs: dict[int, dict[int, float]]
    regimes: Sequence[Regime]
    requests: int = 4
    overhead: float = 0.001
    drift_budget: float | None = None

    def environment(self, seed: int) -> SimulatedEnvironment:
        return SimulatedEnvironment(
            self.costs, self.regimes, seed=seed, overhead=self.overhead, drift_budget=self.drift_budget
        )

    @property
    def target(self) -> int:
        return max(self.costs)


def drawn(
    costs: dict[int, dict[int, float]], *regimes: Regime, requests: int = 4, drift_budget: float | None = None
) -> Case:
    return Case(costs, regimes, requests, drift_budget=drift_budget)


def shifting(*stretches: tuple[float, float], tokens: int = 500) -> list[Regime]:
    return [Regime({0: draft, 1: qualifier}, tokens=tokens, burstiness=0.5) for draft, qualifier in stretches]


CASES: dict[str, Case] = {
    "useless": drawn(FLAT, Regime({0: 0.02, 1: 0.02})),
    "good draft": drawn(FLAT, Regime({0: 0.75, 1: 0.9})),
    "weak draft": drawn(FLAT, Regime({0: 0.4, 1: 0.9})),
    "strong draft": drawn(FLAT, Regime({0: 0.93, 1: 0.95})),
    "bursty": drawn(FLAT, Regime({0: 0.7, 1: 0.85}, burstiness=0.8)),
    "steep costs": drawn(STEEP, Regime({0: 0.7, 1: 0.85}, burstiness=0.5)),
    "repetitive": drawn(LOOKUP, Regime({0: 0.9, 1: 0.6}, hit={0: 0.7}, burstiness=0.5)),
    "hardly repetitive": drawn(LOOKUP, Regime({0: 0.4, 1: 0.75}, hit={0: 0.2}, burstiness=0.5)),
    "drift budget": drawn(FLAT, Regime({0: 0.6, 1: 0.8}, burstiness=0.5), drift_budget=0.1),
    "shifting": drawn(FLAT, *shifting((0.9, 0.95), (0.2, 0.5), (0.7, 0.9), (0.1, 0.85)), requests=8),
}


class HeuristicSchedule:
    """Hugging Face's `heuristic` schedule of assisted decoding: two tokens more after a fully accepted draft, one less else."""

    name = "hf heuristic"
    notes: list[str] = []

    def __init__(self, config: PyramidConfig) -> None:
        self.config = config

    def begin(self, request: RequestInfo) -> HeuristicSchedule:
        return self  # the length is kept from one text to the next, as transformers keeps it

    def choose(self) -> Decision:
        return Decision(self.config, self.name)

    def observe(self, block: BlockStats) -> None:
        last = block.verifications[-1]
        change = 2 if last.accepted == last.proposed else -1
        length = min(100, max(1, self.config.stages[-1].length + change))
        self.config = self.config.with_stage(self.config.target, length=length)


def build(name: str, case: Case) -> Controller:
    n_tiers = case.target + 1
    pool = Pool(n_tiers, tuple(sorted(case.costs)), CostModel(case.costs), measured=True)
    if name == "hf heuristic":
        stages = tuple(StageConfig(5) for _ in range(n_tiers - 1))
        return HeuristicSchedule(PyramidConfig(stages, (0, case.target)))
    if name == "own blocks only":
        arms = make_controller("planner", None, default_config(n_tiers), pool, case.drift_budget).arms
        return PlannerController(arms, pool, case.drift_budget, counterfactual=False)
    return make_controller(name, None, default_config(n_tiers), pool, case.drift_budget)


@dataclass
class LabResult:
    """A controller on a stream."""

    tokens: int
    seconds: float
    configs: list[PyramidConfig]
    lost: float  # largest excess over target-only decoding, seconds
    overdraft: float  # largest excess over the exploration budget, seconds


def play(case: Case, controller: Controller, seed: int) -> LabResult:
    environment, target = case.environment(seed), case.target
    alone = environment.costs.seconds(target, 1) + environment.overhead
    outcome = LabResult(0, 0.0, [], 0.0, 0.0)
    excess = 0.0

    def book(block: BlockStats) -> None:
        nonlocal excess
        prefill = sum(
            f.seconds - environment.costs.seconds(target, f.needed)
            for f in block.forwards
            if f.tier == target and f.is_prefill
        )
        if len(block.config.route) > 1:  # what target-only blocks take more or less than usual is no doing of control
            excess += block.seconds - prefill - alone * block.tokens
        outcome.tokens += block.tokens
        outcome.seconds += block.seconds
        outcome.configs.append(block.config)
        outcome.lost = max(outcome.lost, excess)
        outcome.overdraft = max(outcome.overdraft, excess - 0.02 * outcome.seconds)

    for _ in range(case.requests):
        run(environment, controller, TOKENS, PROMPT, on_block=book)
    # The shortest probe at its dearest: with the longest text to catch up with.
    probe = min(environment.costs.seconds(tier, PROMPT + TOKENS) for tier in case.costs if tier != target)
    probe += environment.costs.seconds(target, 2) - environment.costs.seconds(target, 1)
    outcome.overdraft = max(0.0, outcome.overdraft - probe)
    return outcome


def settled_after(configs: Sequence[PyramidConfig], speeds: dict[PyramidConfig, float]) -> int:
    """First block from which on 9 of 10 of 50 blocks run an arm within 5 % of the best; all of them if none."""
    best = max(speeds.values())
    good = [speeds.get(config, 0.0) >= 0.95 * best for config in configs]
    return next((i for i in range(len(good)) if sum(good[i : i + 50]) >= 0.9 * len(good[i : i + 50])), len(good))


def experiment(
    environments: dict[str, Case], controls: Sequence[str], seeds: int, console: Console
) -> dict[str, dict[str, dict]]:
    """{environment: {control: numbers}}; Ctrl-C returns what is finished."""
    results: dict[str, dict[str, dict]] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=len(environments) * seeds)
        try:
            for environment, case in environments.items():
                rows = {name: [] for name in controls}
                for seed in range(seeds):
                    arms = build("planner", case).arms
                    static = {arm: play(case, FixedController(arm), seed) for arm in arms}
                    speeds = {arm: outcome.tokens / outcome.seconds for arm, outcome in static.items()}
                    best = max(speeds, key=speeds.get)
                    alone = speeds[arms[0]]
                    for name in controls:
                        outcome = play(case, build(name, case), seed)
                        speed = outcome.tokens / outcome.seconds
                        rows[name].append(
                            {
                                "speed": speed / alone,
                                "of_best": speed / speeds[best],
                                "best": best.label,
                                "settles": settled_after(outcome.configs, speeds),
                                "lost": outcome.lost * alone,
                                "overdraft": outcome.overdraft * alone,
                            }
                        )
                    progress.update(bar, advance=1, description=f"{environment}, seed {seed + 1}/{seeds}")
                results[environment] = {name: summary(values) for name, values in rows.items()}
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted: what follows holds the environments that were finished.[/yellow]")
    return results


def summary(rows: list[dict]) -> dict:
    return {
        "speed": statistics.mean(r["speed"] for r in rows),
        "of_best": statistics.mean(r["of_best"] for r in rows),
        "settles": statistics.median(r["settles"] for r in rows),
        "lost": max(r["lost"] for r in rows),
        "overdraft": max(r["overdraft"] for r in rows),
        "best": statistics.mode(r["best"] for r in rows),
    }


def show(results: dict[str, dict[str, dict]], console: Console) -> None:
    for environment, rows in results.items():
        best = next(iter(rows.values()))["best"]
        table = Table(title=f"{environment} (best static arm: {best})")
        for column in ("control", "speed", "of best", "settles", "lost", "budget"):
            table.add_column(column, justify="left" if column == "control" else "right")
        for name, row in sorted(rows.items(), key=lambda item: -item[1]["of_best"]):
            table.add_row(
                name,
                f"{row['speed']:.3f}",
                f"{row['of_best']:.3f}",
                f"{row['settles']:.0f}",
                f"{row['lost']:.1f}",
                f"{row['overdraft']:.1f}",
                style="bold" if name == "planner" else "",
            )
        console.print(table)
    if len(results) > 1:
        table = Table(title="all environments: share of the best static arm's speed")
        for column in ("control", "mean", "worst"):
            table.add_column(column, justify="left" if column == "control" else "right")
        names = list(next(iter(results.values())))
        shares = {name: [rows[name]["of_best"] for rows in results.values()] for name in names}
        for name in sorted(names, key=lambda n: -statistics.mean(shares[n])):
            table.add_row(
                name,
                f"{statistics.mean(shares[name]):.3f}",
                f"{min(shares[name]):.3f}",
                style="bold" if name == "planner" else "",
            )
        console.print(table)


def main(arguments: list[str] | None = None) -> None:
    adaptive = [name for name in CONTROLS if name not in ("fixed", "auto", "bandit")]
    names = ["planner", "own blocks only", *[name for name in adaptive if name != "planner"], "hf heuristic"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="independent streams per environment (default: 5)")
    parser.add_argument(
        "--environments",
        "--plants",
        nargs="+",
        choices=list(CASES),
        default=list(CASES),
        metavar="NAME",
        help=", ".join(CASES),
    )
    parser.add_argument("--controls", nargs="+", choices=names, default=names, metavar="CONTROL", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="folder for control_lab.json")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    environments = {name: CASES[name] for name in options.environments}
    console = Console()
    results = experiment(environments, options.controls, options.seeds, console)
    console.print(f"{options.seeds} streams per environment")
    show(results, console)
    if options.out and results:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "control_lab.json").write_text(json.dumps(results, indent=1) + "\n")
        console.print(f"written: {options.out / 'control_lab.json'}")


if __name__ == "__main__":
    main()
