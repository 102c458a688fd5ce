"""Work outside the models: bookkeeping, verification and statistics per token, at growing contexts.

    python examples/overhead.py [--family smollm2-135m] [--tokens 64] [--contexts 128 1024 4096] [--device cpu]

For every route it decodes with a fixed config and reports the share of block time spent outside forward passes
(the goal is at most 3 %), the milliseconds per token behind it, and device-to-host copies per verification.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from adaptive_pyramid import AdaptivePyramid, PyramidConfig
from adaptive_pyramid.config import route_label


class CopyCounter:
    """Counts every read of tensor values by the host inside a `with` block."""

    NAMES = ("tolist", "item", "cpu", "__int__", "__float__", "__bool__")

    def __enter__(self) -> CopyCounter:
        self.count = 0
        self._originals = {name: getattr(torch.Tensor, name) for name in self.NAMES}
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, self._counting(original))
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)

    def _counting(self, original):
        def counted(tensor, *args, **keywords):
            self.count += tensor.device.type != "cpu"
            return original(tensor, *args, **keywords)
        return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--length", type=int, default=6, help="tokens proposed per verification")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    pyramid = AdaptivePyramid.from_family(options.family, device=options.device)
    if options.device.startswith("cuda"):
        torch.cuda.set_sync_debug_mode("warn")
    n_tiers = len(pyramid.decoder.tiers)
    generator = torch.Generator().manual_seed(0)
    vocabulary = pyramid.decoder.vocab_size
    words = torch.randint(vocabulary // 100, vocabulary, (max(options.contexts),), generator=generator).tolist()
    table = Table("context", "route", "sampling", "outside models, median block", "ms per token", "copies per verification",
                  title=f"{options.family}, {options.tokens} tokens, length {options.length}")
    jobs = [(context, route, sampling) for context in options.contexts for route in pyramid.pool().routes()
            for sampling in (False, True)]
    for context, route, sampling in track(jobs, description="decoding", console=Console(stderr=True)):
        config = PyramidConfig.simple([options.length] * (n_tiers - 1), route=route)
        with CopyCounter() as copies:
            output = pyramid.generate(words[:context], max_new_tokens=options.tokens, eos_token_id=None, config=config,
                                      do_sample=sampling, seed=0 if sampling else None, control="fixed")
        blocks = [block for block in output.stats.blocks if not block.is_prefill]
        outside = [1 - block.model_seconds / block.seconds for block in blocks]
        per_token = [1000 * (block.seconds - block.model_seconds) / block.tokens for block in blocks]
        verifications = sum(len(block.verifications) for block in output.stats.blocks)
        on_device = options.device != "cpu"
        counted = f"{copies.count / verifications:.2f}" if on_device else f"{sum(b.copies for b in output.stats.blocks) / verifications:.2f} (by design)"
        table.add_row(str(context), route_label(route), "keyed" if sampling else "greedy", f"{statistics.median(outside):.1%}",
                      f"{statistics.median(per_token):.3f}", counted)
    Console().print(table)


if __name__ == "__main__":
    main()
