"""First findings, as a page: what traces say about entropy, acceptance, lengths, and what adapting could be worth.

    python -m tuning.findings --out docs

Records traces of four tasks into findings.npz first (resumable: what it holds already is kept), unless --traces names a
file. Writes findings.md and PNGs. Every number in the page comes from the traces; times are modelled from the cost table
that was measured when they were recorded, or from --costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.pool import Pool
from tuning import traces as recorder
from tuning.commandline import INTERRUPTED, OneSentenceParser, add_cost_options, one_sentence
from tuning.console import note, progress_bar
from tuning.costs import CostTable, load_costs
from tuning.findings_page import Page
from tuning.traces import TraceSet

RECORDED = Path("findings.npz")
TASKS = ("csqa", "gsm8k", "humaneval", "spec_bench")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)


def grid(traces: TraceSet) -> list[PyramidConfig]:
    """Every route of the pool with every length of LENGTHS at every stage."""
    header = traces.header
    pool = Pool(len(header.tiers), header.models, header.costs, measured=True)
    found = []
    for route in pool.routes():
        combinations: list[dict[int, int]] = [{}]
        for tier in route[1:]:
            combinations = [{**lengths, tier: length} for lengths in combinations for length in LENGTHS]
        found += [
            PyramidConfig.simple([lengths.get(k, 1) for k in range(1, len(header.tiers))], route=route)
            for lengths in combinations
        ]
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = OneSentenceParser(
        "tuning.findings", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument(
        "--traces",
        type=Path,
        metavar="FILE",
        help=f"what tuning.traces recorded (default: recorded now, into {RECORDED})",
    )
    cli.add_argument(
        "--out", type=Path, default=Path("docs"), metavar="DIR", help="where the page goes (default %(default)s)"
    )
    cli.add_argument("--family", default="smollm2-135m", help="to record with (default %(default)s)")
    cli.add_argument("--limit", type=int, default=12, help="examples per task to record (default %(default)s)")
    cli.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="directory with csqa.jsonl, gsm8k.jsonl, ... (default: the samples in the package)",
    )
    add_cost_options(cli, "add what a what-if cost table would make of it")
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    cli = parser()
    given = cli.parse_args(arguments)
    with one_sentence(cli):
        if not given.out.is_dir():
            raise ValueError(f"--out must be a directory that exists, got {str(given.out)!r}")
        if given.cost_rows and not given.costs:
            raise ValueError("--cost-rows belongs to --costs")
        costs = load_costs(given.costs, given.cost_rows) if given.costs else None
    if given.traces is None and (code := _record(given)):
        return code
    try:
        with one_sentence(cli):
            write_page(TraceSet.load(given.traces or RECORDED), given.out, costs)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _record(given: argparse.Namespace) -> int:
    """Record what RECORDED lacks; returns the exit code."""
    common = ["--family", given.family, "--limit", str(given.limit), "--out", str(RECORDED)]
    if given.data is None:
        return recorder.main(["--task", *TASKS, *common])
    for task in TASKS:
        if code := recorder.main(["--task", task, "--data", str(given.data / f"{task}.jsonl"), *common]):
            return code
    return 0


def write_page(traces: TraceSet, folder: Path, costs: CostTable | None = None) -> Path:
    """Write findings.md and its pictures into `folder`. Raises ImportError without matplotlib."""
    if costs is not None:
        costs.model(traces.header)  # a table that does not fit is an error now, not after a minute
    page = Page(traces, folder)
    page.introduction(
        "python -m tuning.findings" + (f" --costs {costs.name} --cost-rows {','.join(costs.rows)}" if costs else "")
    )
    page.entropy()
    page.acceptance()
    page.thresholds()
    page.lengths()
    configs = grid(traces)
    tables = [None, costs] if costs is not None else [None]
    with progress_bar("hindsight", len(tables) * (len(page.by_task) + 1)) as advance:
        for table in tables:
            page.adapting(configs, table, advance)
    page.calibration()
    path = page.save()
    note(f"{path}")
    return path


if __name__ == "__main__":
    sys.exit(main())
