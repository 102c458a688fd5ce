"""From logits to the law a token is drawn from, and the two kinds of randomness it is drawn with."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from .tokens import Sequence, Tokens

# These look at one row of scores and at nothing before it, so all positions of a proposal go through in one call.
_ROWWISE = (
    hf.TemperatureLogitsWarper, hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.MinPLogitsWarper, hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper, hf.EtaLogitsWarper, hf.LogitNormalization, hf.InfNanRemoveLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
)


class Sampler:
    """How every tier of one request turns logits into a law.

    Args:
        do_sample: False = greedy, where laws are point masses on the argmax.
        processors: Hugging Face processors in the order `generate` applies them; each sees the ids before its position.
        padding: pads that stood before the prompt: no model reads them, but processors count them, as in `generate`.
        device: where the processors keep their tensors; scores of tiers elsewhere visit it. None = wherever scores are.
    """

    def __init__(self, do_sample: bool, processors: LogitsProcessorList | None = None, padding: Iterable[int] = (),
                 device: torch.device | None = None) -> None:
        self.do_sample = do_sample
        self.processors = list(processors or [])
        self.padding = list(padding)
        self.device = device

    def scores(self, logits: torch.Tensor, sequence: Sequence, tail: Tokens) -> torch.Tensor:
        """Processed scores, float32 [m, V].

        `logits` [m, V] belong to the last m positions of `sequence` followed by `tail`: row i was computed from all
        ids but the last m - 1 - i. The input is not modified.
        """
        if not self.processors:
            return logits
        scores, ids = logits if self.device is None else logits.to(self.device), None
        for processor in self.processors:
            if type(processor) in _ROWWISE:
                scores = processor(None, scores)
                continue
            if ids is None:
                scores = scores.clone()   # nobody knows what a processor of the user's writes to
                known = torch.tensor([*self.padding, *sequence.ids], dtype=torch.long, device=scores.device)
                ids = torch.cat([known, tail.tensor(scores.device)])[None]
            end = ids.shape[1] - len(logits) + 1
            rows = [processor(ids[:, : end + i], scores[i : i + 1]) for i in range(len(logits))]
            scores = torch.cat(rows)
        return scores.to(logits.device)

    @staticmethod
    def law(scores: torch.Tensor) -> torch.Tensor:
        """Probabilities, float32 [m, V]."""
        return torch.softmax(scores, dim=-1)


class Noise(Protocol):
    """Where draws get their randomness from."""

    coupled: bool

    def draw(self, laws: torch.Tensor, position: int) -> torch.Tensor:
        """One token per row of `laws` [m, V]; row i stands at `position + i`. -> long [m]"""

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        """n numbers in [0, 1), float32 [n]."""


class PrivateNoise:
    """Ordinary independent draws from private generators, one per device; the global ones stay untouched."""

    coupled = False

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        generator = self._generators.get(device)
        if generator is None:
            generator = torch.Generator(device)
            generator.manual_seed(_mixed(self.seed, len(self._generators)))
            self._generators[device] = generator
        return torch.rand(n, generator=generator, device=device)

    def draw(self, laws: torch.Tensor, position: int) -> torch.Tensor:
        return inverse_cdf(laws, self.uniform(len(laws), laws.device))


class KeyedNoise:
    """Noise keyed by (seed, position) and shared by all tiers: y = argmax(log p + g_i), g_i standard Gumbel.

    The draw at a position depends on nothing but the law there, so with a `match` test the output does not depend on
    drafts, routes or control; two tiers agree with probability at least (1 - TV) / (1 + TV) (arXiv 2408.07978).
    Noise is made on the CPU, so that every device sees the same.
    """

    coupled = True

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.seed = seed
        self.vocab_size = vocab_size
        self._rows: OrderedDict[int, torch.Tensor] = OrderedDict()

    def factors(self, position: int) -> torch.Tensor:
        """exp(g) at `position`, float32 [V]: argmax(p * exp(g)) is argmax(log p + g) without a logarithm per entry."""
        row = self._rows.get(position)
        if row is None:
            # A counter-based generator is keyed by nature, and numpy's exponentials cost a quarter of torch's.
            keyed = np.random.Generator(np.random.Philox(key=[self.seed % 2**64, position]))
            # In float64 (for the same time): in float32 one entry in 10^7 is exactly 0, and an entry of 0 wins whatever its
            # probability, which would make up to one token in a hundred of a large vocabulary pure chance.
            exponential = keyed.standard_exponential(self.vocab_size)
            row = self._rows[position] = torch.from_numpy(1.0 / np.maximum(exponential, 1e-30)).to(torch.float32)
            if len(self._rows) > 64:   # made again if needed: a row is as wide as the vocabulary
                self._rows.popitem(last=False)
        return row

    def draw(self, laws: torch.Tensor, position: int) -> torch.Tensor:
        rows = [self.factors(position + i) for i in range(len(laws))]
        noise = torch.stack(rows) if len(rows) > 1 else rows[0][None]
        return best(laws * noise.to(laws.device, non_blocking=True))

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError("keyed noise has no independent uniforms: only the `match` family of rules shares it")


def best(scores: torch.Tensor) -> torch.Tensor:
    """Index of the (first) largest entry of every row. [m, V] -> long [m]"""
    if scores.device.type == "cpu":
        # numpy's argmax is vectorised, torch's is not: 15 times slower at a vocabulary of 49,152.
        return torch.from_numpy(np.asarray(scores.numpy().argmax(-1)))
    return scores.argmax(-1)


def inverse_cdf(masses: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw one index per row from unnormalised masses [m, V] with uniforms [m]; an index of mass 0 is never drawn.

    One uniform per draw instead of one per vocabulary entry (`multinomial` fills a whole row with exponentials).
    """
    cumulative = masses.cumsum(dim=-1, dtype=torch.float64 if masses.device.type != "mps" else torch.float32)
    total = cumulative[:, -1:].contiguous()
    wanted = uniforms.to(cumulative.dtype)[:, None] * total
    index = torch.searchsorted(cumulative, wanted, right=True)
    # u * total can round up to total itself; the last index with mass is then the right one.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(index, last)[:, 0]


def _mixed(seed: int, key: int) -> int:
    """A 63-bit seed from (seed, key): nearby seeds must not share a stream."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
