"""Whole generations timed the same way for a config, for `ar` and for Hugging Face.

A timed generation writes exactly `max_new_tokens` tokens (`ar` beside each trial half of them: `Bench.ar_at_its_pace`).
End-of-text and other special tokens are suppressed, for all three alike, because the tokens/s of an answer that ends after
twelve tokens are mostly the prompt's. Every one starts with cold caches, so the prompt is paid each time, as in
`model.generate`. Scores come from answers that end where the model ends them (`Bench.answer`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.stats import BlockStats, GenerationStats


@dataclass(frozen=True)
class Timed:
    """One generation.

    Args:
        ids: the new ones. seconds: for `tokens` of them. blocks: (seconds, tokens) of each; empty for Hugging Face.
        stats: None for Hugging Face. planned: tokens that `seconds` stands for where only the first ids were generated.
    """

    ids: list[int]
    seconds: float
    stats: GenerationStats | None = None
    blocks: Sequence[tuple[float, int]] = ()
    planned: int | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids) if self.planned is None else self.planned

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def seconds_until(self, tokens: int) -> float:
        """Seconds to the end of the block that brought token number `tokens`."""
        passed, seen = 0.0, 0
        for seconds, count in self.blocks:
            passed, seen = passed + seconds, seen + count
            if seen >= tokens:
                break
        return passed


@dataclass
class Bench:
    """Greedy generation with one pyramid, timed.

    Args:
        price: None = by the wall clock; else seconds of a block by its counters, for machines that cannot be timed
            honestly (several workers on one, say). Hugging Face has no counters, so it is not priced.
    """

    pyramid: AdaptivePyramid
    method: Method
    max_new_tokens: int
    price: Callable[[BlockStats], float] | None = None
    special: list[int] = field(init=False)
    ends: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        ends = self.target.generation_config.eos_token_id
        self.ends = frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)
        self.special = sorted(self.ends | set(getattr(self.pyramid.tokenizer, "all_special_ids", ())))

    @property
    def target(self) -> torch.nn.Module:
        return self.pyramid.decoder.tiers[-1]

    def ar(self, prompt: Sequence[int]) -> Timed:
        """Target-only decoding."""
        return self._generate(prompt, method="ar", suppress_tokens=self.special)

    def ar_at_its_pace(self, prompt: Sequence[int]) -> Timed:
        """Target-only decoding of the first half of the tokens, timed for all of them.

        Its tokens take the same time each, whatever they are, so that half of them tells as much as all do, in half the
        time; every missing one is booked with the median of those after the first (which pays for the prompt).
        """
        half = max(2, self.max_new_tokens // 2)
        run = self._generate(prompt, method="ar", suppress_tokens=self.special, max_new_tokens=half)
        pace = statistics.median(seconds for seconds, _ in run.blocks[1:])
        missing = self.max_new_tokens - half
        return replace(
            run,
            seconds=run.seconds + missing * pace,
            blocks=[*run.blocks, *[(pace, 1)] * missing],
            planned=self.max_new_tokens,
        )

    def run(self, prompt: Sequence[int], config: PyramidConfig) -> Timed:
        """The method under test with `config`."""
        return self._generate(prompt, method=self.method, config=config, control="fixed", suppress_tokens=self.special)

    def adaptive(self, prompt: Sequence[int]) -> Timed:
        """The method under the pyramid's own control, and what that has learned so far."""
        return self._generate(prompt, method=self.method, control="auto", suppress_tokens=self.special)

    def answer(self, prompt: Sequence[int], config: PyramidConfig | None = None) -> Timed:
        """As users get it: ends at the model's own end. `config` None = target-only."""
        if config is None:
            return self._generate(prompt, method="ar")
        return self._generate(prompt, method=self.method, config=config, control="fixed")

    def hugging_face(self, prompt: Sequence[int]) -> Timed:
        """`target.generate` with the same keywords as `ar`."""
        ids = torch.tensor([list(prompt)], device=self.target.device)
        started = time.perf_counter()
        with torch.inference_mode():
            sequences = self.target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=self.max_new_tokens,
                suppress_tokens=self.special,
            )
        new = sequences[0, len(prompt) :].tolist()
        return Timed(new, time.perf_counter() - started)

    def _generate(self, prompt: Sequence[int], **keywords: object) -> Timed:
        self.pyramid.clear_caches()
        started = time.perf_counter()
        keywords = {"max_new_tokens": self.max_new_tokens, **keywords}
        output = self.pyramid.generate(list(prompt), do_sample=False, **keywords)
        wall = time.perf_counter() - started
        blocks = output.stats.blocks
        if self.price is not None:
            priced = [(self.price(block), block.tokens) for block in blocks]
            return Timed(output.ids, sum(seconds for seconds, _ in priced), output.stats, priced)
        timed = [(block.seconds + block.control_seconds, block.tokens) for block in blocks]
        return Timed(output.ids, wall, output.stats, timed)

    def answer_text(self, ids: Sequence[int]) -> str:
        """Text of an answer, special tokens left out."""
        return self.pyramid.tokenizer.decode(list(ids), skip_special_tokens=True)


def in_rotation(runs: Sequence[Callable[[], Timed]], turn: int) -> list[Timed]:
    """Call every run once, starting with another one each turn, so that no one always pays for being first.

    Results are in the order of `runs`.
    """
    order = [(turn + i) % len(runs) for i in range(len(runs))]
    found = {index: runs[index]() for index in order}
    return [found[index] for index in range(len(runs))]
