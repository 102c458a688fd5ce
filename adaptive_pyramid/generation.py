"""One prompt under control: where the decoder and a controller meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .config import PyramidConfig
from .control.controller import Controller, RequestInfo
from .decoding.decoder import Block, Decoding
from .decoding.method import Method
from .output import PyramidOutput, StopText
from .stats import BlockStats, GenerationStats

OnBlock = Callable[[BlockStats, list[int]], None]


@dataclass(frozen=True)
class DecodingOptions:
    """How one call decodes: the pyramid's own settings, with what the call gives put in their place."""

    method: str | Method
    config: PyramidConfig
    control: str | Controller
    drift_budget: float | None
    hooks: tuple[OnBlock, ...] = ()


class Generation:
    """Steps a decoding with the configs a controller chooses, and collects the result."""

    def __init__(
        self,
        decoding: Decoding,
        controller: Controller,
        tokenizer: Any,
        stop_text: StopText | None,
        hooks: Sequence[OnBlock],
    ) -> None:
        self.decoding = decoding
        self.request = decoding.request
        self.controller = controller
        self._tokenizer = tokenizer
        self._stop_text = stop_text
        self._hooks = hooks
        self.stats = GenerationStats(
            method=decoding.method.name,
            control_name=controller.name,
            drift_budget=decoding.drift_budget,
            seed=self.request.seed if self.request.do_sample and self._repeatable else None,
            drift_unit="total variation" if self.request.do_sample else "nats",
        )
        self._scores: list[torch.Tensor] = []
        self._logits: list[torch.Tensor] = []

    def run(self) -> Iterator[Block]:
        """Yield blocks until the text ends."""
        request, decoding = self.request, self.decoding
        control_seconds, started = 0.0, time.perf_counter()
        control = self.controller.begin(
            RequestInfo(
                len(request.prompt_ids),
                request.max_new_tokens,
                request.do_sample,
                decoding.method.lossless,
                decoding.drift_budget,
                reused=decoding.reused,
            )
        )
        while not decoding.finished:
            # Chosen right before the block, so that it knows what other requests have shown meanwhile.
            decision = control.choose()
            control_seconds += time.perf_counter() - started
            block = decoding.step(decision.config)
            block = replace(block, stats=replace(block.stats, decision=decision, control_seconds=control_seconds))
            started = time.perf_counter()
            control.observe(block.stats)
            control_seconds = time.perf_counter() - started
            self.stats.blocks.append(block.stats)
            # Rows are split and cloned outside the block: kept whole, they would hold its full [m, V] tensors alive.
            if request.output_scores:
                self._scores += [row.clone()[None] for row in block.scores]
            if request.output_logits:
                self._logits += [row.clone()[None] for row in block.logits]
            for hook in self._hooks:
                hook(block.stats, block.tokens)
            yield block
            started = time.perf_counter()
        self.stats.notes += [*decoding.notes, *control.notes]

    @property
    def _repeatable(self) -> bool:
        """Whether passing the seed gives this text again, under the same config where the method needs that."""
        method = self.decoding.method
        if method.name == "pyramid" and method.top == "exact":
            return False  # given a seed, `pyramid` draws otherwise than without one
        # Where the draws do not depend on the proposals, nor does the text; else it depends on configs, and control that
        # adapts chooses them by measured times.
        return (method.lossless and method.coupled) or self.controller.name == "fixed"

    @property
    def text_end(self) -> int | None:
        """Where the text ends because of a stop string; None if it does not."""
        return None if self._stop_text is None else self._stop_text.end

    def output(self, padding: Sequence[int] = ()) -> PyramidOutput:
        """The result, when `run` is exhausted; `padding` stood before the prompt."""
        request, ids = self.request, self.decoding.new_ids
        text = None
        if self._tokenizer is not None:
            text = self._tokenizer.decode(ids, skip_special_tokens=True)[: self.text_end]
        return PyramidOutput(
            sequences=torch.tensor([[*padding, *request.prompt_ids, *ids]], dtype=torch.long),
            ids=ids,
            text=text,
            stats=self.stats,
            finish_reason=self.decoding.finish_reason,
            scores=tuple(self._scores) if request.output_scores else None,
            logits=tuple(self._logits) if request.output_logits else None,
            seed=self.stats.seed,
        )
