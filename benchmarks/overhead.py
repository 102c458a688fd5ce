"""Work outside the models: bookkeeping, verification and statistics per token, at growing contexts.

    python -m benchmarks.overhead [--family smollm2-135m] [--tokens 64] [--contexts 128 1024 4096] [--device cpu]

For every route it decodes with a fixed config and reports the share of block time spent outside forward passes (the goal
is at most 3 %) and outside the logits processors that the caller asked for (top_k of 50 by default when sampling: plain
sampling pays for them, too), the milliseconds per token behind it, and device-to-host copies per verification.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from adaptive_pyramid import AdaptivePyramid, PyramidConfig
from adaptive_pyramid.config import route_label
from adaptive_pyramid.decoding.sampling import Sampler


class ProcessorTimer:
    """Adds up the seconds that logits processors take inside a `with` block."""

    def __enter__(self) -> ProcessorTimer:
        self.seconds = 0.0
        self._original = Sampler.scores
        original = self._original

        def timed(sampler, *args):
            started = time.perf_counter()
            scores = original(sampler, *args)
            self.seconds += time.perf_counter() - started
            return scores

        Sampler.scores = timed
        return self

    def __exit__(self, *error: object) -> None:
        Sampler.scores = self._original


class CopyCounter:
    """Counts the copies of tensor values to the host inside a `with` block."""

    NAMES = ("tolist", "item", "cpu", "__int__", "__float__", "__bool__")

    def __enter__(self) -> CopyCounter:
        self.count = self._depth = 0
        self._originals = {name: getattr(torch.Tensor, name) for name in self.NAMES}
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, self._counting(name, original))
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)

    def _counting(self, name, original):
        def counted(tensor, *args, **keywords):
            # Reading the CPU's own memory is free, and drafting on it looks for EOS; a verification's copy is a `tolist`.
            self.count += not self._depth and (name == "tolist" or tensor.device.type != "cpu")
            self._depth += 1  # `__int__` may call `item`: one read
            try:
                return original(tensor, *args, **keywords)
            finally:
                self._depth -= 1

        return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--length", type=int, default=6, help="tokens proposed per verification")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.tokens < 4 * options.length:
        parser.error(
            f"--tokens must be at least {4 * options.length} (four blocks of --length {options.length}), got {options.tokens}"
        )

    pyramid = AdaptivePyramid.from_family(options.family, device=options.device)
    if options.device.startswith("cuda"):
        torch.cuda.set_sync_debug_mode("warn")
    n_tiers = len(pyramid.decoder.tiers)
    generator = torch.Generator().manual_seed(0)
    vocabulary = pyramid.decoder.vocab_size
    words = torch.randint(vocabulary // 100, vocabulary, (max(options.contexts),), generator=generator).tolist()
    table = Table(
        "context",
        "route",
        "sampling",
        "outside models",
        "processors",
        "the rest",
        "ms per token",
        "copies per verification",
        title=f"{options.family}, {options.tokens} tokens, length {options.length}",
    )
    jobs = [
        (context, route, sampling)
        for context in options.contexts
        for route in pyramid.pool().routes()
        for sampling in (False, True)
    ]
    for context, route, sampling in track(jobs, description="decoding", console=Console(stderr=True)):
        config = PyramidConfig.simple([options.length] * (n_tiers - 1), route=route)
        counts: list[int] = []
        processing: list[float] = []
        with CopyCounter() as copies, ProcessorTimer() as processors:
            output = pyramid.generate(
                words[:context],
                max_new_tokens=options.tokens,
                eos_token_id=None,
                config=config,
                do_sample=sampling,
                seed=0 if sampling else None,
                control="fixed",
                on_block=[
                    lambda stats, ids: counts.append(copies.count),
                    lambda stats, ids: processing.append(processors.seconds),
                ],
            )
        blocks = output.stats.blocks[1:]  # the first holds the prompt
        outside = [1 - block.model_seconds / block.seconds for block in blocks]
        processed = [
            (after - before) / block.seconds for before, after, block in zip(processing, processing[1:], blocks)
        ]
        rest = [share - theirs for share, theirs in zip(outside, processed)]
        per_token = [1000 * share * block.seconds / block.tokens for share, block in zip(rest, blocks)]
        verifications = sum(len(block.verifications) for block in blocks)
        table.add_row(
            str(context),
            route_label(route),
            "keyed" if sampling else "greedy",
            *(f"{statistics.median(share):.1%}" for share in (outside, processed, rest)),
            f"{statistics.median(per_token):.3f}",
            f"{(counts[-1] - counts[0]) / verifications:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
