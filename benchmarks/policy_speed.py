"""Time of one round (select + update) of every bandit policy.

    python -m benchmarks.policy_speed --arms 32

A decoding block takes milliseconds, so a policy should stay well below 50 microseconds (LinUCB below 200).
Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from time import perf_counter_ns

import numpy as np
from rich.console import Console
from rich.table import Table

from policies import POLICIES, make_policy


def round_times(name: str, n_arms: int, context_dim: int, rounds: int) -> np.ndarray:
    """Microseconds of each of `rounds` rounds, after a tenth as many that are not counted."""
    options = {"context_dim": context_dim} if name == "lin_ucb" else {}
    policy = make_policy(name, n_arms, **options)
    rng = np.random.default_rng(0)
    warm_up = rounds // 10 + n_arms
    contexts = rng.uniform(-1.0, 1.0, (rounds + warm_up, context_dim))
    rewards = rng.random(rounds + warm_up).tolist()
    times = np.empty(rounds + warm_up)
    for t, (reward, context) in enumerate(zip(rewards, contexts, strict=True)):
        start = perf_counter_ns()
        arm = policy.select(context)
        policy.update(arm, reward, context)
        times[t] = perf_counter_ns() - start
    return times[warm_up:] / 1000.0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=32, help="number of arms (default: 32)")
    parser.add_argument("--context-dim", type=int, default=8, help="length of LinUCB's context (default: 8)")
    parser.add_argument("--rounds", type=int, default=20_000, help="timed rounds per policy (default: 20000)")
    options = parser.parse_args(arguments)
    for field in ("arms", "context_dim", "rounds"):
        if getattr(options, field) < 1:
            parser.error(f"--{field.replace('_', '-')} must be at least 1, got {getattr(options, field)}")
    table = Table(title=f"select + update, {options.arms} arms, context of {options.context_dim}, microseconds")
    for column in ("policy", "median", "90 %", "99 %"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name in POLICIES:
        times = round_times(name, options.arms, options.context_dim, options.rounds)
        table.add_row(name, *(f"{value:.1f}" for value in np.percentile(times, [50, 90, 99])))
    Console().print(table)


if __name__ == "__main__":
    main()
