"""What tests of traces and replay share: pools of tiny graded models, recorded along with their real decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.request import GenerationRequest
from adaptive_pyramid.stats import BlockStats
from adaptive_pyramid.throughput import CostModel
from tuning.traces.format import DIVERGENCES, Header, TierInfo, Trace, TraceSet
from tuning.traces.recording import record, tier_infos


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


def agreement(entropy: np.ndarray) -> np.ndarray:
    """The true acceptance: a draft that is sure is right."""
    return 0.95 * np.exp(-0.4 * entropy)


def synthetic(traces: int, tiers: int = 2, n: int = 120, seed: int = 0) -> TraceSet:
    """Traces whose lower tiers agree with the target by `agreement`; where they do not, the regret is exponential."""
    rng = np.random.default_rng(seed)
    header = Header(
        tuple(TierInfo(f"tier{k}") for k in range(tiers)),
        costs=CostModel({k: {1: 1.0 + 3 * k, 8: 2.0 + 3 * k} for k in range(tiers)}),
    )
    found = []
    for index in range(traces):
        entropy = rng.gamma(1.0, 1.2, (tiers, n)).astype(np.float32)
        ids = rng.integers(5, 50, n).astype(np.int32)
        top = np.where(rng.random((tiers, n)) < agreement(entropy), ids, 60 + rng.integers(0, 3, (tiers, n))).astype(
            np.int32
        )
        top[-1] = ids
        gaps = rng.exponential(0.8, (len(DIVERGENCES), len(header.pairs), n)).astype(np.float32)
        for column, (low, high) in enumerate(header.pairs):
            gaps[:, column][:, top[low] == top[high]] = 0.0
        own = np.where(top == ids, 0.0, 1.0).astype(np.float32)
        found.append(
            Trace(
                "",
                str(index),
                0,
                n,
                False,
                np.array([1, 2], np.int32),
                ids,
                top,
                -own,
                own,
                entropy,
                gaps,
                np.full((tiers, n), -1, np.int32),
                np.zeros((0, 3), np.int32),
                np.zeros((0, tiers), np.float32),
            )
        )
    return TraceSet(header, found)
