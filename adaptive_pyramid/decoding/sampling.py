"""From logits to the distribution a token is drawn from, and the two kinds of randomness it is drawn with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from ..stateful_processors import StatefulProcessor, wrapped
from .tokens import Tokens, TokenSequence

# These look at one row of scores and at nothing before it, so all positions of a proposal go through in one call.
_ROWWISE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.LogitNormalization,
    hf.InfNanRemoveLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
)


# SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Sampler:
    """How every tier of one request turns logits into a distribution.

    Args:
        do_sample: False = greedy, where distributions are point masses on the argmax.
        processors: Hugging Face processors in the order `generate` applies them; each sees the ids before its position.
            Those with a state of their own (see `stateful_processors`) are called along the verified text, as `generate` does.
        padding: pads that stood before the prompt: no model reads them, but processors count them, as in `generate`.
        device: where the processors keep their tensors; scores of tiers elsewhere visit it. None = wherever scores are.
    """

    def __init__(
        self,
        do_sample: bool,
        processors: LogitsProcessorList | None = None,
        padding: Iterable[int] = (),
        device: torch.device | None = None,
    ) -> None:
        self.do_sample = do_sample
        self.processors = list(processors or [])
        self._stateful: dict[int, StatefulProcessor | None] = {}  # by place in the list, from their first call on
        self.padding = list(padding)
        self.device = device

    def scores(self, logits: torch.Tensor, sequence: TokenSequence, tail: Tokens) -> torch.Tensor:
        """Processed scores, float32 [m, V].

        `logits` [m, V] belong to the last m positions of `sequence` followed by `tail`: row i was computed from all
        ids but the last m - 1 - i. The input is not modified.
        """
        if not self.processors:
            return logits
        scores, ids = logits if self.device is None else logits.to(self.device), None
        for place, processor in enumerate(self.processors):
            if type(processor) in _ROWWISE:
                scores = processor(None, scores)
                continue
            if ids is None:
                scores = scores.clone()  # nobody knows what a processor of the user's writes to
                known = torch.tensor([*self.padding, *sequence.ids], dtype=torch.long, device=scores.device)
                ids = torch.cat([known, tail.tensor(scores.device)])[None]
            end = ids.shape[1] - len(logits) + 1
            if place not in self._stateful:
                self._stateful[place] = wrapped(processor, ids[:, :end], scores[:1])
            keeper = self._stateful[place]
            if keeper is None:
                rows = [processor(ids[:, : end + i], scores[i : i + 1]) for i in range(len(logits))]
            else:
                text, first = [*sequence.ids, *tail.host_ids()], end - len(self.padding)
                rows = [
                    keeper.scores(text, sequence.verified, first + i, ids[:, : end + i], scores[i : i + 1])
                    for i in range(len(logits))
                ]
            scores = torch.cat(rows)
        return scores.to(logits.device)

    @staticmethod
    def distributions(scores: torch.Tensor) -> torch.Tensor:
        """Probabilities, float32 [m, V]."""
        return torch.softmax(scores, dim=-1)


class Noise(Protocol):
    """Where draws get their randomness from."""

    coupled: bool

    def draw(self, distributions: torch.Tensor, position: int) -> torch.Tensor:
        """One token per row of `distributions` [m, V]; row i stands at `position + i`.

        -> long [m]; -1 where none is possible
        """

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        """n numbers in [0, 1) of `real_dtype(device)`, [n]."""


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
            generator.manual_seed(_mixed(self.seed, len(self._generators)) >> 1)
            self._generators[device] = generator
        return torch.rand(n, generator=generator, device=device, dtype=real_dtype(device))

    def draw(self, distributions: torch.Tensor, position: int) -> torch.Tensor:
        return inverse_cdf(distributions, self.uniform(len(distributions), distributions.device))


class KeyedNoise:
    """Noise keyed by (seed, position) and shared by all tiers: y = argmax(log p + g_i), g_i standard Gumbel.

    The draw at a position depends on nothing but the distribution there, so with a `match` test the output does not depend
    on drafts, routes or control; two tiers agree with probability at least (1 - TV) / (1 + TV) (arXiv 2408.07978).
    Noise is made on the CPU, so that every device sees the same.

    The noise of token i is output i of the generator SplitMix64, started anew for every position. Any output can be had
    without the others, so a distribution that top_k has left 50 tokens of costs 50 of them and not a vocabulary.
    """

    coupled = True

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.seed = seed
        self._steps = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        self._rows: OrderedDict[int, np.ndarray] = OrderedDict()

    def draw(self, distributions: torch.Tensor, position: int) -> torch.Tensor:
        if distributions.device.type == "cpu":
            return torch.tensor(
                [self._drawn(distribution, position + i) for i, distribution in enumerate(distributions.numpy())]
            )
        noise = torch.from_numpy(np.stack([self._row(position + i) for i in range(len(distributions))]))
        dtype = real_dtype(distributions.device)
        return best(distributions * noise.to(distributions.device, dtype, non_blocking=True))

    def _drawn(self, distribution: np.ndarray, position: int) -> int:
        possible = np.flatnonzero(distribution > 0)
        if not len(possible):
            return -1
        if len(possible) > len(distribution) // 4:
            return int((distribution * self._row(position)).argmax())
        factors = _gumbel_factors(self._steps[possible] + self._key(position))
        return int(possible[(distribution[possible] * factors).argmax()])

    def _row(self, position: int) -> np.ndarray:
        """exp(g) at `position` for the whole vocabulary, kept for the tiers above."""
        row = self._rows.get(position)
        if row is None:
            row = self._rows[position] = _gumbel_factors(self._steps + self._key(position))
            if len(self._rows) > 64:  # made again if needed: a row is as wide as the vocabulary
                self._rows.popitem(last=False)
        return row

    def _key(self, position: int) -> np.uint64:
        return np.uint64(_mixed(self.seed, position))

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError("keyed noise has no independent uniforms: only the `match` family of rules shares it")


def _gumbel_factors(states: np.ndarray) -> np.ndarray:
    """exp(g), g standard Gumbel, from states of SplitMix64: argmax(p * exp(g)) is argmax(log p + g). uint64 -> float64"""
    x = states ^ (states >> np.uint64(30))
    x *= np.uint64(_MIX_A)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX_B)
    x ^= x >> np.uint64(31)
    # 53 bits, the middle of their interval: with fewer, one entry in 10^7 would be 0 or 1, and such an entry wins
    # whatever its probability, which would make one token in a hundred of a large vocabulary pure chance.
    return -1.0 / np.log(((x >> np.uint64(11)) + 0.5) * 2.0**-53)


def best(scores: torch.Tensor) -> torch.Tensor:
    """Index of the (first) largest entry of every row. [m, V] -> long [m]"""
    if scores.device.type == "cpu":
        # numpy's argmax is vectorised, torch's is not: 15 times slower at a vocabulary of 49,152.
        return torch.from_numpy(np.asarray(scores.numpy().argmax(-1)))
    return scores.argmax(-1)


def real_dtype(device: torch.device) -> torch.dtype:
    """What draws are computed in: float64, and float32 on MPS, which has no float64.

    A float32 uniform is a multiple of 2^-24. Of 50,000 tokens of probability 1e-8 it can reach 8,389, and it is 0, which
    accepts whatever is possible at all, once in 2^24 draws. On MPS that remains so.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def inverse_cdf(masses: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw one index per row from unnormalised masses [m, V] with uniforms [m]; an index of mass 0 is never drawn.

    -1 for a row without any mass (or with NaN).

    One uniform per draw instead of one per vocabulary entry (`multinomial` fills a whole row with exponentials).
    """
    cumulative = masses.cumsum(dim=-1, dtype=real_dtype(masses.device))
    total = cumulative[:, -1:].contiguous()
    wanted = uniforms.to(cumulative.dtype)[:, None] * total
    index = torch.searchsorted(cumulative, wanted, right=True)
    # u * total can round up to total itself; the last index with mass is then the right one.
    last = torch.searchsorted(cumulative, total)
    return torch.where(total > 0, torch.minimum(index, last), -1)[:, 0]


def _mixed(seed: int, key: int) -> int:
    """64 bits from (seed, key): nearby seeds or keys must not share a stream. SplitMix64 twice, on Python's integers."""
    x = seed
    for step in (1, key + 1):
        x = (x + step * _GOLDEN) % 2**64
        x = (x ^ (x >> 30)) * _MIX_A % 2**64
        x = (x ^ (x >> 27)) * _MIX_B % 2**64
        x ^= x >> 31
    return x
