"""A study as one page: `python -m tuning.report csqa.yaml [--out csqa.html] [--claims]`.

Reads the profile and its study (by default the SQLite file beside it) and writes one HTML file that needs no network,
with its pictures as PNG files in a folder beside it. `--claims` first runs the real decodings that the papers' claims on
drifting methods need; they are kept beside the profile, and an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tuning.report import plots
from tuning.report.writer import write_report
from tuning.terminal.commandline import INTERRUPTED, OneSentenceParser, one_sentence
from tuning.terminal.progress import note


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = OneSentenceParser(
        "tuning.report", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("profile", help="a profile that tuning.search wrote")
    cli.add_argument("--out", metavar="FILE", help="the page (default: the profile's name, ending in .html)")
    cli.add_argument(
        "--storage", metavar="URL", help="the study's database (default: the SQLite file beside the profile)"
    )
    cli.add_argument("--claims", action="store_true", help="run the decodings that the papers' claims need (resumable)")
    cli.add_argument(
        "--family", metavar="FILE", help="with --claims: the family's YAML file, if the study was made with one"
    )
    cli.add_argument(
        "--task", metavar="FILE", help="with --claims: the task's YAML file, if the study was made with one"
    )
    cli.add_argument(
        "--data", metavar="FILE", help="with --claims: the questions' file, if the study was made with one"
    )
    cli.add_argument(
        "--run-code",
        action="store_true",
        help="with --claims: run generated code in a sandbox, for tasks with unit tests",
    )
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a report; returns the exit code."""
    cli = parser()
    given = cli.parse_args(arguments)
    with one_sentence(cli):
        plots.require()
        if given.storage is not None:
            from tuning.study.storage import checked_url

            given.storage = checked_url(given.storage)
        if given.claims:
            try:
                _measure_claims(given)
            except KeyboardInterrupt:
                note("Interrupted: the questions decoded so far are kept; the same command goes on from there.")
                return INTERRUPTED
        elif given.family or given.task or given.data or given.run_code:
            raise ValueError(
                "--family, --task, --data and --run-code say what --claims decodes; expected --claims with them"
            )
        print(f"wrote {write_report(given.profile, given.out, given.storage)}")
    return 0


def _measure_claims(given: argparse.Namespace) -> None:
    from adaptive_pyramid.models import families
    from tuning.report.paper_decodings import decode
    from tuning.report.study_data import StudyData

    study = StudyData.load(given.profile, given.storage)
    family = families.load(given.family, target=study.profile.target) if given.family else None
    decode(study, family, given.task, given.data, given.run_code)


if __name__ == "__main__":
    sys.exit(main())
