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

from tuning.replay.what_if_costs import load_costs
from tuning.research.findings_page import write_page
from tuning.terminal.commandline import INTERRUPTED, OneSentenceParser, add_cost_options, one_sentence
from tuning.traces import __main__ as recorder
from tuning.traces.format import TraceSet

RECORDED = Path("findings.npz")
TASKS = ("csqa", "gsm8k", "humaneval", "spec_bench")


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


if __name__ == "__main__":
    sys.exit(main())
