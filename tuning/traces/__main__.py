"""Record traces: the target's own greedy answers, and what every tier of the pool says along them.

    python -m tuning.traces --task gsm8k csqa --out traces.npz

A trace set is one .npz file: flat arrays over the tokens of all traces, and a JSON header (tiers, tokenizer, settings,
measured costs, versions). docs/traces.md describes the format. Reading it needs no torch and no model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adaptive_pyramid.errors import check_int
from tuning.tasks.task import load_task
from tuning.terminal.commandline import INTERRUPTED, OneSentenceParser, one_sentence
from tuning.terminal.progress import note, progress_bar
from tuning.traces.format import TraceSet


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = OneSentenceParser(
        "tuning.traces", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument(
        "--task", nargs="+", required=True, metavar="TASK", help="names of tasks, or paths of their YAML files"
    )
    cli.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="the .npz file; traces that it holds already are kept and not repeated",
    )
    cli.add_argument(
        "--family", default="smollm2-135m", help="a family's name, or the path of its YAML file (default %(default)s)"
    )
    cli.add_argument("--target", default="auto", help="another of the family's targets (default %(default)s)")
    cli.add_argument("--dtype", default="auto", help="float32, bfloat16, ... (default %(default)s)")
    cli.add_argument(
        "--data", metavar="FILE", help="questions in the task's format (one task only; default: its sample)"
    )
    cli.add_argument("--limit", type=int, help="examples per task, chosen by the seed (default: all)")
    cli.add_argument("--max-new-tokens", type=int, metavar="N", help="longest answer (default: the task's)")
    cli.add_argument("--seed", type=int, default=0, help="of the choice of examples (default %(default)s)")
    cli.add_argument("--no-costs", action="store_true", help="do not measure what forwards cost here")
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Record traces; returns the exit code."""
    cli = parser()
    given = cli.parse_args(arguments)
    try:
        with one_sentence(cli):
            _record(given)
    except KeyboardInterrupt:
        note(f"Interrupted: what was recorded is kept in {given.out}; the same command goes on from there.")
        return INTERRUPTED
    return 0


def _record(given: argparse.Namespace) -> None:
    if given.out.suffix != ".npz" or not given.out.parent.is_dir():
        raise ValueError(f"--out must be a file that ends in .npz, in a directory that exists; got {str(given.out)!r}")
    if given.data is not None and len(given.task) > 1:
        raise ValueError(
            f"--data belongs to one task, got {len(given.task)}: record them one by one into the same file"
        )
    if given.max_new_tokens is not None:
        check_int("--max-new-tokens", given.max_new_tokens, 1)
    tasks = [load_task(name, data=given.data, limit=given.limit, seed=given.seed) for name in given.task]
    known = TraceSet.load(given.out) if given.out.exists() else None
    # Imported here because loading torch takes seconds, which --help and most mistakes need not wait for.
    from adaptive_pyramid.decoding.decoder import PyramidDecoder
    from adaptive_pyramid.models import families
    from tuning.traces.measured_costs import cost_forwards
    from tuning.traces.recording import header_of, record_task

    family = families.load(given.family, dtype=given.dtype, target=given.target)
    decoder = PyramidDecoder(family.models)
    if known is None:
        with progress_bar("cost table", 0 if given.no_costs else cost_forwards(decoder)) as advance:
            known = TraceSet(header_of(family, decoder, not given.no_costs, advance))
    elif differences := known.header.differences(header_of(family, decoder, costs=False)):
        raise ValueError(f"{given.out} was recorded otherwise ({'; '.join(differences)}); record into a new file")
    for task in tasks:
        with progress_bar(task.name, sum(len(example.turns) for example in task.examples)) as advance:
            record_task(known, decoder, family.tokenizer, task, given.max_new_tokens, given.out, advance)
    note(
        f"{given.out}: {len(known)} traces, {known.tokens} tokens, "
        f"{given.out.stat().st_size / known.tokens:.0f} bytes per token; read some positions at a time, the target "
        f"disagrees with its own text at {known.width_flips:.2%} of them"
    )


if __name__ == "__main__":
    sys.exit(main())
