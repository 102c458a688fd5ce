"""Control's own time: microseconds of one `observe` and `choose` per controller, on a four-tier pool with as many arms as there may be.

    python -m benchmarks.control_speed --blocks 600

A decoding block takes milliseconds, so a step should stay below 1 % of that. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from time import perf_counter_ns

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_pyramid.control.factory import CONTROLS, Pool, default_config, make_controller
from adaptive_pyramid.throughput import WIDTHS, CostModel
from tests.simulated import Regime, SimulatedEnvironment

COSTS = {
    tier: {width: first * (1 + 0.02 * (width - 1)) for width in WIDTHS}
    for tier, first in {1: 0.004, 2: 0.012, 3: 0.040}.items()
}


def step_times(name: str, blocks: int) -> tuple[int, np.ndarray]:
    """(number of arms, microseconds of each of `blocks` steps), a tenth as many steps not counted."""
    pool = Pool(4, tuple(COSTS), CostModel(COSTS), measured=True)
    controller = make_controller(name, None, default_config(4), pool)
    environment = SimulatedEnvironment(COSTS, [Regime({0: 0.8, 1: 0.6, 2: 0.85}, hit={0: 0.4})])
    control = controller.begin(environment.start(64, 10**6))
    config = control.choose().config
    warm_up = blocks // 10
    times = np.empty(blocks + warm_up)
    for i in range(blocks + warm_up):
        block = environment.step(config)
        started = perf_counter_ns()
        control.observe(block)
        config = control.choose().config
        times[i] = (perf_counter_ns() - started) / 1000
    return len(controller.arms), times[warm_up:]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=600, help="steps per controller (default: 600)")
    options = parser.parse_args(arguments)
    if options.blocks < 1:
        parser.error(f"--blocks must be at least 1, got {options.blocks}")
    table = Table(title=f"microseconds per step, {options.blocks} blocks")
    for column in ("control", "arms", "mean", "median", "95 %"):
        table.add_column(column, justify="left" if column == "control" else "right")
    for name in [name for name in CONTROLS if name not in ("fixed", "auto", "bandit")]:
        arms, times = step_times(name, options.blocks)
        table.add_row(
            name, str(arms), f"{times.mean():.0f}", f"{np.median(times):.0f}", f"{np.quantile(times, 0.95):.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
