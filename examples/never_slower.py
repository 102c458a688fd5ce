"""What drafts cost that are good for nothing: a target under a draft and a qualifier of random weights, by the clock.

    python examples/never_slower.py [--family smollm2-135m] [--tokens 100 200 400 800] [--repeats 5]

Every run starts cold: empty caches, and a controller that knows nothing. Runs under control and target-only runs alternate
on the same prompt. Columns:

    ratio     tokens/s under control over target-only decoding: median, and [least, largest]; the goal is at least 0.97
    lost      seconds above target-only decoding, by the controller's own books, at the end: largest of all runs
    allowed   what its account allows for that run: 2 % of elapsed time and one shortest probe
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adaptive_pyramid import AdaptivePyramid, families  # noqa: E402
from adaptive_pyramid.control.defaults import default_config, make_controller  # noqa: E402

PROMPT = [{"role": "user", "content": "Explain, step by step and in detail, how a letter travels from one country to another."}]


def random_model(like: PreTrainedModel, layers: int, seed: int) -> PreTrainedModel:
    """A model with the architecture of `like`, fewer layers, and random weights."""
    config = copy.deepcopy(like.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).to(like.dtype).to(like.device).eval()


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
    pyramid = AdaptivePyramid(tiers, family.tokenizer, control="fixed")
    keywords = {"do_sample": False, "eos_token_id": None, "suppress_tokens": sorted(family.tokenizer.all_special_ids)}

    def seconds(tokens: int, **how: object) -> float:
        pyramid.clear_caches()
        started = time.perf_counter()
        pyramid.generate(PROMPT, max_new_tokens=tokens, **keywords, **how)
        return time.perf_counter() - started

    console = Console()
    table = Table("tokens", "ratio", "lost, s", "allowed, s", title=f"{options.family} under random weights, {options.repeats} runs each")
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("decoding", total=len(options.tokens) * options.repeats)
        seconds(8, method="ar")   # first calls are slow
        for tokens in options.tokens:
            ratios, books = [], []
            for repeat in range(options.repeats):
                controller = make_controller("auto", None, default_config(3), pyramid.pool())
                runs = [lambda: seconds(tokens, method="ar"), lambda: seconds(tokens, control=controller)]
                timed = {i: runs[i]() for i in ((0, 1) if repeat % 2 else (1, 0))}
                ratios.append(timed[0] / timed[1])
                account = controller.account
                books.append((account.excess, account.share * account.elapsed + account.advance))
                progress.advance(bar)
            lost, allowed = max(books, key=lambda pair: pair[0] - pair[1])
            table.add_row(str(tokens), f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]", f"{lost:.3f}", f"{allowed:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
