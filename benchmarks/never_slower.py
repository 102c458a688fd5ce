"""What drafts cost that are good for nothing: a target under a draft and a qualifier of random weights, in wall-clock time.

    python -m benchmarks.never_slower [--family smollm2-135m] [--tokens 100 200 400 800] [--repeats 5]

Every run starts cold: empty caches, and a controller that knows nothing. The same prompt is decoded under control and by the
target alone, in turn after every block: whoever has fewer tokens goes on. Speeds of a machine drift by more over one answer
than what is to be seen here, and so they drift for both. Columns:

    ratio     tokens/s under control over target-only decoding: median, and [least, largest]; the goal is at least 0.97
    lost      seconds above target-only decoding, by the controller's own books, at the end: largest of all runs
    allowed   what its exploration budget allows for that run: 2 % of elapsed time and one shortest probe
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from adaptive_pyramid import AdaptivePyramid, families
from adaptive_pyramid.control.controller import Controller, FixedController
from adaptive_pyramid.control.factory import default_config, make_controller
from adaptive_pyramid.stats import BlockStats

PROMPT = [
    {
        "role": "user",
        "content": "Explain, step by step and in detail, how a letter travels from one country to another.",
    }
]


def random_model(like: PreTrainedModel, layers: int, seed: int) -> PreTrainedModel:
    """A model with the architecture of `like`, fewer layers, and random weights."""
    config = copy.deepcopy(like.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).to(like.dtype).to(like.device).eval()


class InterleavedRun:
    """An answer decoded piece by piece, and the seconds it took."""

    def __init__(self, pyramid: AdaptivePyramid, tokens: int, suppressed: list[int], **how: object) -> None:
        pyramid.clear_caches()
        self.seconds, self.tokens, self.finished = 0.0, 0, False
        self._pieces = pyramid.stream(
            PROMPT,
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            suppress_tokens=suppressed,
            on_block=self._count,
            **how,
        )

    def _count(self, block: BlockStats, ids: list[int]) -> None:
        self.tokens += len(ids)

    def go_on(self) -> None:
        started = time.perf_counter()
        self.finished = next(self._pieces, None) is None
        self.seconds += time.perf_counter() - started


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 200, 400, 800])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)

    family = families.load(options.family)
    target = family.models[-1]
    layers = target.config.num_hidden_layers
    tiers = [random_model(target, max(1, layers // 8), 0), random_model(target, max(1, layers // 3), 1), target]
    # Two pyramids of the same models, since each has caches of its own.
    alone, controlled = (AdaptivePyramid(tiers, family.tokenizer, control="fixed") for _ in range(2))
    suppressed = sorted(family.tokenizer.all_special_ids)

    def race(tokens: int, controller: Controller) -> float:
        """Seconds of target-only decoding over seconds under control."""
        runs = [
            InterleavedRun(alone, tokens, suppressed, method="ar"),
            InterleavedRun(controlled, tokens, suppressed, control=controller),
        ]
        while going := [run for run in runs if not run.finished]:
            min(going, key=lambda run: run.tokens).go_on()
        return runs[0].seconds / runs[1].seconds

    console = Console()
    table = Table(
        "tokens",
        "ratio",
        "lost, s",
        "allowed, s",
        title=f"{options.family} under random weights, {options.repeats} runs each",
    )
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("decoding", total=len(options.tokens) * options.repeats)
        race(8, FixedController(default_config(3)))  # first calls are slow
        for tokens in options.tokens:
            ratios, books = [], []
            for _ in range(options.repeats):
                controller = make_controller("auto", None, default_config(3), controlled.pool())
                ratios.append(race(tokens, controller))
                budget = controller.budget
                books.append((budget.excess, budget.share * budget.elapsed + budget.advance))
                progress.advance(bar)
            lost, allowed = max(books, key=lambda pair: pair[0] - pair[1])
            table.add_row(
                str(tokens),
                f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]",
                f"{lost:.3f}",
                f"{allowed:.3f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
