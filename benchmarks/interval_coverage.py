"""How often do 95 % intervals of the time saved cover the truth, and how often does a profile claim a gain of nothing?

    python -m benchmarks.interval_coverage [--samples 4000]

On simulated prompts. First table: share of samples whose interval holds the true ratio of the totals, for the interval that
profiles and trials use, for bootstraps over prompts (percentiles, BCa), and for a bootstrap after leaving out the largest and
smallest eighth of the ratios. "threefold": one prompt in twelve gains threefold, in each dozen or by chance (then a third of
the samples of twelve hold none, and no interval knows of what its sample lacks). Second table: studies in which no config
gains anything, runs with so much noise; how often what is stated is above 1, and how often with its whole interval.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from tests.simulated_prompts import (
    best_of_trials,
    simulated_prompts,
    stated_where_nothing_helps,
    trimmed_bootstrap,
)
from tuning.statistics import time_ratio

SPREADS = [(0.1, ""), (0.3, ""), (0.6, ""), (0.05, "each"), (0.1, "each"), (0.1, "chance"), (0.3, "chance")]


def resampled(method: str):
    def interval(reference: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = stats.bootstrap(
            (reference, seconds),
            lambda a, b, axis=-1: a.sum(axis) / b.sum(axis),
            paired=True,
            axis=-1,
            n_resamples=400,
            batch=50,
            method=method,
            rng=np.random.default_rng(0),
        ).confidence_interval
        return reference.sum(-1) / seconds.sum(-1), found.low, found.high

    return interval


INTERVALS = {
    "used": time_ratio,
    "percentiles": resampled("percentile"),
    "BCa": resampled("BCa"),
    "trimmed, percentiles": trimmed_bootstrap,
}


def coverage(samples: int) -> Table:
    table = Table(
        "speed-ups", "times", "prompts", *INTERVALS, title="covers the truth, % (median ratio stated / truth)"
    )
    for sigma, threefold in SPREADS:
        for tail in (0.05, 0.8):
            for n in (6, 12, 24):
                if threefold and n == 6:
                    continue
                reference, seconds, truth = simulated_prompts(n, sigma, tail, samples, threefold)
                cells = []
                for interval in INTERVALS.values():
                    value, low, high = interval(reference, seconds)
                    held = 100 * ((low <= truth) & (truth <= high)).mean()
                    cells.append(f"{held:.1f} ({np.median(value) / truth:.3f})")
                kind = f"threefold ({threefold})" if threefold else "log-normal"
                table.add_row(f"{kind}, {sigma:g}", f"spread {tail:g}", str(n), *cells)
    return table


def claims(studies: int) -> Table:
    table = Table(
        "noise of a run", "disturbed runs", "best of 3 on its own 6", "more than 1.02", "whole interval",
        "fresh, whole interval", title="studies where nothing helps: % that claim a gain",
    )  # fmt: skip
    for noise, disturbed in ((0.03, 0.0), (0.05, 0.0), (0.1, 0.0), (0.05, 0.04)):
        cells = ["", "", ""]
        if not disturbed:
            ratio, low = best_of_trials(noise, studies)
            cells = [f"{100 * share.mean():.1f}" for share in (ratio > 1, ratio > 1.02, low > 1)]
        stated = [stated_where_nothing_helps(noise, seed, disturbed).stated.gain.low > 1 for seed in range(studies)]
        table.add_row(f"{noise:.0%}", f"{disturbed:.0%}", *cells, f"{100 * np.mean(stated):.1f}")
    return table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    options = parser.parse_args(arguments)
    console = Console(width=150)
    console.print(coverage(options.samples))
    console.print(claims(options.samples))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
