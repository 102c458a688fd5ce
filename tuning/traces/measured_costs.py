"""What a forward of each tier costs on this machine, by its width: measured where traces are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.tokens import Tokens, TokenSequence
from adaptive_pyramid.throughput import CostModel, measure_costs

WIDTHS = (1, 2, 4, 8, 16, 32, 128)  # the last one is there for prompts
CONTEXT = 128
REPEATS = 5


def cost_table(
    decoder: PyramidDecoder,
    ids: Sequence[int],
    context: int = CONTEXT,
    widths: Sequence[int] = WIDTHS,
    repeats: int = REPEATS,
    progress: Callable[[], None] = lambda: None,
) -> CostModel:
    """Median seconds of a forward of each model tier over every width, on top of `context` cached tokens.

    `ids` is any text of the family, repeated until it is long enough. `progress` is called after every forward.
    """
    needed = context + max(widths)
    text = (list(ids) * (needed // len(ids) + 1))[:needed]
    texts = {width: TokenSequence(text[: context + width]) for width in widths}

    def forward(tier: int, width: int) -> float:
        scorer = decoder.scorers[tier]
        _wait(scorer.device)
        started = time.perf_counter()
        # All texts share their first `context` tokens and only `width` logits are asked for, so `width` tokens are fed.
        scorer.logits(texts[width], Tokens(), last=width)
        _wait(scorer.device)
        return time.perf_counter() - started

    with torch.inference_mode():
        for scorer in decoder.scorers.values():
            scorer.logits(TokenSequence(text[:context]), Tokens(), last=1)
        costs = measure_costs(forward, list(decoder.scorers), widths, repeats, progress)
    decoder.clear_caches()
    # Prompts are priced by going on with the last slope. On a busy machine noise can make that negative, and a long
    # prompt then costs less than nothing.
    return CostModel({tier: {**row, max(row): max(row.values())} for tier, row in costs.table.items()})


def cost_forwards(decoder: PyramidDecoder) -> int:
    """How many forwards `cost_table` times with its defaults."""
    return len(decoder.scorers) * len(WIDTHS) * (REPEATS + 1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
