"""What tests of traces and replay share: pools of tiny graded models, recorded along with their real decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.request import GenerationRequest
from adaptive_pyramid.stats import BlockStats
from adaptive_pyramid.throughput import CostModel
from tuning.recording import record, tier_infos
from tuning.traces import Header, TraceSet


@dataclass
class Pool:
    """Traces, and the decoder that they were recorded with."""

    decoder: PyramidDecoder
    traces: TraceSet

    @classmethod
    def of(cls, tiers: Sequence[Any], prompts: Sequence[Sequence[int]], new: int, eos: Sequence[int] = ()) -> Pool:
        decoder = PyramidDecoder(tiers)
        header = Header(tier_infos(decoder), tuple(eos), costs=costs(decoder.scorers))
        return cls(
            decoder,
            TraceSet(header, [record(decoder, prompt, new, eos, example=str(i)) for i, prompt in enumerate(prompts)]),
        )

    def blocks(
        self, trace: int, configs: PyramidConfig | Sequence[PyramidConfig], method: Any = "pyramid"
    ) -> Iterator[BlockStats]:
        """The real decoder's blocks on the prompt of a trace, from a cold start; several configs take turns."""
        configs = [configs] if isinstance(configs, PyramidConfig) else list(configs)
        recorded = self.traces[trace]
        self.decoder.clear_caches()
        request = GenerationRequest(
            tuple(recorded.prompt.tolist()), recorded.max_new_tokens, eos=frozenset(self.traces.header.eos)
        )
        decoding = self.decoder.start(request, method)
        turn = 0
        while not decoding.finished:
            yield decoding.step(configs[turn % len(configs)]).stats
            turn += 1
        assert decoding.new_ids == recorded.ids.tolist() or not decoding.method.lossless


def costs(tiers: Sequence[int]) -> CostModel:
    """Different for every tier and width, so that no two mistakes cancel."""
    return CostModel({tier: {1: 1.0 + tier, 2: 1.1 + 1.3 * tier, 64: 9.0 + 3.0 * tier} for tier in tiers})


def repetitive(decoder_tiers: Sequence[Any], prompts: Sequence[Sequence[int]], new: int = 20) -> list[list[int]]:
    """Prompts that hold the beginning of their own answers, so that a lookup finds something."""
    target = PyramidDecoder(decoder_tiers[-1:])
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(3):
            ids += [
                token
                for block in target.blocks(GenerationRequest(tuple(ids), new), PyramidConfig((), (0,)), "ar")
                for token in block.tokens
            ]
        found.append(ids)
    return found
