"""Time of a replay: many configs over 50 answers, from an empty replay to the last result. Needs no model.

    python -m benchmarks.replay_speed --configs 1000
    python -m benchmarks.replay_speed --traces traces.npz

Without a file the answers are synthetic: a lookup under two models, or three models, 128 tokens each.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig
from tests.recorded import synthetic
from tuning.replay.engine import Replay
from tuning.research.findings_page import grid
from tuning.traces.format import TraceSet
from tuning.traces.ngram_index import NgramIndex

ANSWERS, TOKENS = 50, 128


def with_lookup(traces: TraceSet) -> TraceSet:
    """The same texts, with a lookup in place of the lowest model."""
    infos = (replace(traces.header.tiers[0], lookup=(3, 1)), *traces.header.tiers[1:])
    found = []
    for trace in traces:
        copies = NgramIndex([*trace.prompt.tolist(), *trace.ids.tolist()], len(trace.prompt), 3, 1)
        source, top = trace.source.copy(), trace.top.copy()
        source[0] = [copies.source(i, i) for i in range(len(trace))]
        top[0] = [(copies.tokens(i, source[0, i], 1) or [-1])[0] for i in range(len(trace))]
        found.append(replace(trace, source=source, top=top))
    return TraceSet(replace(traces.header, tiers=infos), found)


def some_configs(traces: TraceSet, n: int) -> list[PyramidConfig]:
    """n configs of the grid of `tuning.findings`, each with five taus at every tier below the target; drawn evenly."""
    found = {}
    for config in grid(traces):
        for taus in itertools.product((0.0, 0.03, 0.1, 0.3, 1.0), repeat=traces.header.target - 1):
            for tier, tau in enumerate(taus, start=1):
                config = config.with_stage(tier, tau=tau)
            found[config.normalized()] = None
    drawn = np.linspace(0, len(found) - 1, n).astype(int)
    return [list(found)[i] for i in drawn]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="recorded by python -m tuning.traces")
    options = parser.parse_args(arguments)
    if not 1 <= options.configs <= 1000:
        parser.error(f"--configs must be between 1 and 1000, got {options.configs}")
    if options.traces is not None:
        sets = {str(options.traces): TraceSet.load(options.traces)}
    else:
        models = synthetic(ANSWERS, tiers=3, n=TOKENS)
        sets = {"three models": models, "a lookup, two models": with_lookup(models)}
    table = Table(title=f"{options.configs} configs, one core")
    for column in ("traces", "answers", "tokens", "seconds", "of which CPU"):
        table.add_column(column, justify="left" if column == "traces" else "right")
    for name, traces in sets.items():
        configs = some_configs(traces, options.configs)
        started, worked = perf_counter(), process_time()
        replay = Replay(traces)
        for config in configs:
            replay.play(config)
        passed = (perf_counter() - started, process_time() - worked)
        table.add_row(name, str(len(traces)), str(traces.tokens), *(f"{seconds:.1f}" for seconds in passed))
    Console().print(table)


if __name__ == "__main__":
    main()
