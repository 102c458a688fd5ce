"""A profile as options of other engines: `python -m tuning.export csqa.yaml --to vllm`.

Prints the options, preceded by `# ` lines on what they mean and what the engine cannot express. No other engine runs
pyramids, so a longer chain becomes its best-placed proposer alone, and no other engine knows this library's taus, so
what is exported is always exact. Measured speeds do not carry over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adaptive_pyramid.profile import Profile
from tuning.study.engine_export import ENGINES, export
from tuning.terminal.commandline import OneSentenceParser, one_sentence


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the options; returns the exit code."""
    cli = OneSentenceParser(
        "tuning.export", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("profile", help="the profile's path")
    cli.add_argument("--to", required=True, metavar="|".join(ENGINES), help="the engine")
    given = cli.parse_args(arguments)
    with one_sentence(cli):
        print(export(Profile.load(given.profile), given.to))
    return 0


if __name__ == "__main__":
    sys.exit(main())
