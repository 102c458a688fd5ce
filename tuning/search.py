"""Tune decoding for one task: `python -m tuning.search --task csqa`.

Writes a profile (YAML) to load with `AdaptivePyramid.from_profile`, a table of the trials (CSV, Markdown), a report (HTML)
and the study (SQLite) beside it. The same command goes on where it was stopped; on many machines with one --storage it
shares the work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tuning.report.writer import report_after_search
from tuning.study.settings import CLOCKS, SAMPLERS, Limits, Settings, choose_examples
from tuning.terminal.commandline import INTERRUPTED, OneSentenceParser, add_cost_options, one_sentence


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = OneSentenceParser(
        "tuning.search", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--task", required=True, help="a task's name, or the path of its YAML file")
    cli.add_argument(
        "--family", default="smollm2-135m", help="a family's name, or the path of its YAML file (default %(default)s)"
    )
    cli.add_argument(
        "--target",
        default="auto",
        metavar="NAME",
        help="which of the family's targets, int4 for instance (default %(default)s)",
    )
    cli.add_argument(
        "--data", metavar="FILE", help="questions in the task's format (default: the sample that comes with the task)"
    )
    cli.add_argument("--method", default="pyramid", help="decoding method (default %(default)s)")
    cli.add_argument(
        "--trials", type=int, default=12, help="the study's total, resumed ones included (default %(default)s)"
    )
    cli.add_argument("--questions", type=int, default=12, help="measured in every trial (default %(default)s)")
    cli.add_argument("--max-new-tokens", type=int, default=48, help="timed per question (default %(default)s)")
    cli.add_argument(
        "--seed", type=int, default=0, help="of the choice of questions and of the sampler (default %(default)s)"
    )
    cli.add_argument("--out", type=Path, metavar="YAML", help="where the profile goes (default TASK.yaml)")
    cli.add_argument(
        "--storage",
        metavar="URL",
        help="database of the study; on many machines: PostgreSQL (default: SQLite beside the profile)",
    )
    cli.add_argument("--min-score", type=float, help="least task score of a usable config")
    cli.add_argument(
        "--max-score-loss", type=float, help="most score lost against the target (methods that drift: 0.02)"
    )
    cli.add_argument("--max-drift", type=float, help="most mean drift per token, in nats")
    cli.add_argument(
        "--sampler",
        default="gp",
        metavar="|".join(SAMPLERS),
        help="chooses the trials after the prior's (default %(default)s)",
    )
    cli.add_argument(
        "--min-gain",
        type=float,
        default=0.0,
        help="end early when less than this share is expected to be gained (gp only)",
    )
    cli.add_argument(
        "--clock",
        default="wall",
        metavar="|".join(CLOCKS),
        help="model: price the forwards with the cost table (default %(default)s)",
    )
    cli.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that measure; several with --clock model only (default %(default)s)",
    )
    add_cost_options(cli, "with --clock model: price everything for a machine that one does not have")
    cli.add_argument("--multi-objective", action="store_true", help="speed and score together: no limits, no pruning")
    cli.add_argument(
        "--run-code", action="store_true", help="run generated code in a sandbox, for tasks with unit tests"
    )
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the search; returns the exit code."""
    cli = parser()
    given = vars(cli.parse_args(arguments))
    limits = {name: given.pop(name) for name in ("min_score", "max_score_loss", "max_drift")}
    try:
        with one_sentence(cli):
            settings = Settings(**given, limits=Limits(**limits))
            examples = choose_examples(settings)
            # Imported here because loading torch takes seconds, which --help and most mistakes need not wait for.
            from tuning.study.runner import prepare

            search = prepare(settings, examples)
        outcome = search.run()
    except KeyboardInterrupt:
        print(f"{cli.prog}: interrupted before the first trial; the same command starts over", file=sys.stderr)
        return INTERRUPTED
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.profile is None:
        return 1
    report_after_search(outcome.out, search.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
