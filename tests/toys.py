"""Toys small enough to enumerate: models that are tables and whose cache *is* the text, exact output distributions, chi-square.

from tests.toys import toy_tables, toy_decoder, toy_request, exact_distribution, sampled_outputs, chi_square_p
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy import stats
from transformers import GenerationMixin, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import Decoding, PyramidDecoder
from adaptive_pyramid.request import GenerationRequest
from adaptive_pyramid.stats import BlockStats

VOCAB = 4
PROMPT = (1, 2)
Output = tuple[int, ...]


class TableModel(PreTrainedModel, GenerationMixin):
    """Logits from a table over the two last ids, float64 [V, V, V]. The ids themselves stand in the key/value cache and
    are read back from it, so a cache that was not rolled back, or rolled back too far, changes the logits."""

    config_class = PretrainedConfig
    _supports_attention_backend = True  # its cache is not tried at construction: engines that are wrong there must run

    def __init__(self, table: torch.Tensor, embeddings: int | None = None) -> None:
        super().__init__(PretrainedConfig(vocab_size=table.shape[-1], num_hidden_layers=1))
        self.embeddings = embeddings or table.shape[-1]
        self.embed = torch.nn.Embedding(self.embeddings, 1)
        self.head = torch.nn.Linear(1, table.shape[-1], bias=False)
        self.table = table
        self.rows = {context: table[context] for context in np.ndindex(*table.shape[:2])}

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(
        self, input_ids: torch.Tensor, cache: Any = None, use_cache: bool = True, logits_to_keep: int = 0
    ) -> SimpleNamespace:
        ids = input_ids.to(torch.float32)[:, None, :, None]
        keys, _ = cache.update(ids, ids, 0)
        text = keys.long().flatten().tolist()
        if max(text) >= self.embeddings:
            raise IndexError(f"id {max(text)} is beyond the {self.embeddings} embeddings")
        wanted = range(len(text) - (logits_to_keep or input_ids.shape[1]), len(text))
        # Ids that the table does not know (a larger vocabulary above) cannot occur: they would have to be embedded.
        return SimpleNamespace(logits=torch.stack([self.rows[text[i - 1] if i else 0, text[i]] for i in wanted])[None])


def toy_tables(n: int, spread: tuple[float, ...] = (0.6,), vocab: int = VOCAB, seed: int = 0) -> list[torch.Tensor]:
    """n tables, draft first and target last: each is the one above it plus noise of `spread` (repeated as needed)."""
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(vocab, vocab, vocab, generator=generator, dtype=torch.float64)

    tables = [0.9 * noise()]
    for step in range(n - 1):
        tables.insert(0, tables[0] + spread[step % len(spread)] * noise())
    return tables


def toy_decoder(tiers: Iterable[Any]) -> PyramidDecoder:
    """Tables become models; anything else (PromptLookup(), candidate generators) stays."""
    return PyramidDecoder([TableModel(tier) if isinstance(tier, torch.Tensor) else tier for tier in tiers])


def warpers(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> LogitsProcessorList:
    """Hugging Face's warpers in the order `generate` applies them."""
    chosen = LogitsProcessorList()
    if temperature != 1.0:
        chosen.append(TemperatureLogitsWarper(temperature))
    if top_k:
        chosen.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        chosen.append(TopPLogitsWarper(top_p))
    if min_p > 0.0:
        chosen.append(MinPLogitsWarper(min_p))
    return chosen


def warped_distribution(
    logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """The distribution [V] of one row of logits [V], float64, written again from the definitions: the reference for `warpers`."""
    distribution = np.exp(logits / temperature - np.max(logits / temperature))
    distribution /= distribution.sum()
    if top_k:
        distribution = np.where(distribution >= np.sort(distribution)[-top_k], distribution, 0.0)
        distribution /= distribution.sum()
    if top_p < 1.0:
        order = np.argsort(-distribution)
        before = np.cumsum(distribution[order]) - distribution[order]  # mass of what is more likely
        kept = order[before < top_p]
        distribution = np.where(np.isin(np.arange(len(distribution)), kept), distribution, 0.0)
        distribution /= distribution.sum()
    if min_p > 0.0:
        distribution = np.where(distribution >= min_p * distribution.max(), distribution, 0.0)
        distribution /= distribution.sum()
    return distribution


def toy_request(
    new: int = 3,
    do_sample: bool = True,
    seed: int = 0,
    seeded: bool = False,
    eos: Iterable[int] = (),
    prompt: tuple[int, ...] = PROMPT,
    **settings: Any,
) -> GenerationRequest:
    """A request of `new` tokens; `settings` are those of `warpers`."""
    return GenerationRequest(
        prompt,
        max_new_tokens=new,
        do_sample=do_sample,
        processors=warpers(**settings),
        eos=frozenset(eos),
        seed=seed,
        seeded=seeded,
    )


def exact_distribution(
    table: torch.Tensor, new: int = 3, eos: Iterable[int] = (), prompt: tuple[int, ...] = PROMPT, **settings: Any
) -> dict[Output, float]:
    """Every output of plain sampling with its probability."""
    rows = table.numpy()
    open_ends, done = {(): 1.0}, {}
    for _ in range(new):
        grown: dict[Output, float] = {}
        for output, mass in open_ends.items():
            context = (*prompt, *output)
            for token, p in enumerate(warped_distribution(rows[context[-2], context[-1]], **settings)):
                if p > 0:
                    (done if token in eos else grown)[*output, token] = mass * p
        open_ends = grown
    return {**done, **open_ends}


def sampled_outputs(
    decoder: PyramidDecoder,
    config: PyramidConfig | Callable[[list[BlockStats]], PyramidConfig],
    method: Any,
    runs: int,
    first_seed: int = 0,
    drift_budget: float | None = None,
    on_finish: Callable[[Decoding, list[BlockStats]], None] | None = None,
    **request: Any,
) -> Counter[Output]:
    """How often each output occurs in `runs` decodings with consecutive seeds. `config` may choose from earlier blocks."""
    counts: Counter[Output] = Counter()
    for seed in range(first_seed, first_seed + runs):
        decoding = decoder.start(toy_request(seed=seed, **request), method, drift_budget)
        blocks: list[BlockStats] = []
        while not decoding.finished:
            blocks.append(decoding.step(config(blocks) if callable(config) else config).stats)
        counts[tuple(decoding.new_ids)] += 1
        if on_finish is not None:
            on_finish(decoding, blocks)
    return counts


def chi_square_p(counts: Counter[Output], distribution: dict[Output, float], smallest: float = 5.0) -> float:
    """p-value of the counts under the distribution; cells expected below `smallest` are pooled. 0 if something impossible occurred."""
    runs = sum(counts.values())
    if any(output not in distribution for output in counts):
        return 0.0
    rare = [output for output, p in distribution.items() if p * runs < smallest]
    cells = [(counts[output], p * runs) for output, p in distribution.items() if p * runs >= smallest]
    if rare:
        cells.append((sum(counts[output] for output in rare), sum(distribution[output] for output in rare) * runs))
    observed, expected = np.array(cells).T
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def total_variation(counts: Counter[Output], distribution: dict[Output, float]) -> float:
    """Between the observed shares and the distribution."""
    runs = sum(counts.values())
    return 0.5 * sum(
        abs(counts[output] / runs - distribution.get(output, 0.0)) for output in distribution.keys() | counts.keys()
    )
