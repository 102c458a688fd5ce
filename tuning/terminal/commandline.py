"""What the commands share: mistakes end in one sentence on stderr and exit code 2, never in a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adaptive_pyramid.errors import FamilyUnavailable, unknown_name

INTERRUPTED = 130  # the shell's code for Ctrl-C


class OneSentenceParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence, with the nearest option for an unknown one."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            self.error(unknown_name("option", unknown[0].split("=")[0], (name for name in options if name[:2] == "--")))
        return found


def add_cost_options(cli: argparse.ArgumentParser, what: str) -> None:
    """--costs and --cost-rows, as `tuning.replay.load_costs` takes them. what: what they are for."""
    cli.add_argument("--costs", metavar="NAME|FILE", help=f"{what}: gpu-24gb, or a YAML file (docs/traces.md)")
    cli.add_argument(
        "--cost-rows",
        type=lambda text: tuple(text.split(",")),
        metavar="A,B",
        help="rows of --costs that stand for the models, draft first (default: all)",
    )


@contextmanager
def one_sentence(cli: argparse.ArgumentParser) -> Iterator[None]:
    """What users can get wrong becomes one sentence and exit code 2; what else goes wrong shows where."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, FamilyUnavailable) as error:
        cli.error(" ".join(str(error).split()))
