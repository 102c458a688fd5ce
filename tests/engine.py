"""What engine tests share: reference texts by Hugging Face `generate`, counting hooks, and the identities of the counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import PreTrainedModel

from adaptive_pyramid.decoding.decoder import output_width
from adaptive_pyramid.decoding.sampling import KeyedNoise
from adaptive_pyramid.stats import BlockStats, Decision, GenerationStats


class ChosenControl:
    """A controller that asks a function of the request's blocks so far for every block's config."""

    name = "chosen"

    def __init__(self, choose) -> None:
        self.function = choose

    def begin(self, request: Any) -> _ChosenRequest:
        return _ChosenRequest(self.function)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class _ChosenRequest:
    def __init__(self, function) -> None:
        self.function = function
        self.blocks: list[BlockStats] = []
        self.notes: list[str] = []

    def choose(self) -> Decision:
        return Decision(self.function(self.blocks), "chosen")

    def observe(self, block: BlockStats) -> None:
        self.blocks.append(block)


@contextmanager
def keyed_multinomial(seed: int, vocab_size: int, prompt_length: int) -> Iterator[None]:
    """Inside, `generate(do_sample=True)` draws with keyed noise: plain sampling with the very noise that a pyramid uses."""
    noise = KeyedNoise(seed, vocab_size)
    position = prompt_length

    def draw(probabilities: torch.Tensor, num_samples: int = 1, **_: Any) -> torch.Tensor:
        nonlocal position
        assert probabilities.shape[0] == num_samples == 1
        token = noise.draw(probabilities, position)
        position += 1
        return token[:, None]

    with mock.patch("torch.multinomial", draw):
        yield


def reference_ids(
    target: PreTrainedModel, prompt: Sequence[int], seed: int | None = None, **keywords: Any
) -> list[int]:
    """New ids of `target.generate`: greedy, or (do_sample=True, seed) plain sampling with keyed noise."""
    ids = torch.tensor([list(prompt)])
    keywords = {"attention_mask": torch.ones_like(ids), **keywords}
    if not keywords.get("do_sample"):
        return target.generate(ids, **keywords)[0, len(prompt) :].tolist()
    with keyed_multinomial(seed, output_width(target), len(prompt)):
        return target.generate(ids, **keywords)[0, len(prompt) :].tolist()


@contextmanager
def counted_forwards(tiers: Sequence[Any]) -> Iterator[tuple[Counter[int], Counter[int]]]:
    """Forward passes and new ids read, per tier, counted by hooks on the models themselves."""
    passes: Counter[int] = Counter()
    read: Counter[int] = Counter()

    def counter(tier: int):
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            passes[tier] += 1
            read[tier] += kwargs["input_ids"].shape[1]

        return hook

    handles = [
        model.register_forward_hook(counter(tier), with_kwargs=True)
        for tier, model in enumerate(tiers)
        if isinstance(model, PreTrainedModel)
    ]
    try:
        yield passes, read
    finally:
        for handle in handles:
            handle.remove()


def check_identities(
    stats: GenerationStats,
    ids: Sequence[int],
    n_tiers: int,
    passes: Counter[int],
    read: Counter[int],
    cut_short: bool = False,
) -> None:
    """Counters that must add up, whatever was decoded. `cut_short`: a stop string or criterion may have cut the last block."""
    assert stats.tokens == len(ids) == len(stats.drift)
    assert [block.position for block in stats.blocks] == [
        sum(b.tokens for b in stats.blocks[:i]) for i in range(len(stats.blocks))
    ]
    for block in stats.blocks:
        assert len(block.drift) == len(block.origins) == block.tokens > 0
        assert block.copies == len(block.verifications)
        target = [v for v in block.verifications if v.tier == n_tiers - 1]
        assert target == [block.verifications[-1]]
        assert target[0].emitted == block.tokens or cut_short and block is stats.blocks[-1]
        if target[0].emitted == block.tokens:
            own = target[0].emitted - target[0].accepted  # the correction or the bonus token
            assert sum(tier == n_tiers - 1 for tier in block.origins) == own
            assert block.origins[block.tokens - own :] == (n_tiers - 1,) * own
        assert block.forwards and sum(f.tier == n_tiers - 1 for f in block.forwards) == 1
        assert all(v.tier in block.config.tiers for v in block.verifications)
        for v in block.verifications:
            assert v.tested == v.accepted + v.rejected <= v.proposed
            assert v.rejected == (v.accepted < v.proposed) or v.emitted == v.accepted  # nothing is refused behind EOS
            assert v.emitted in (v.accepted, v.accepted + 1) and v.emitted > 0
            assert v.relaxed <= v.accepted
            assert len(v.entropy) == v.proposed + 1
            assert len(v.proposal_entropy) == len(v.divergence) == len(v.distance) == v.proposed
    assert sum(stats.tokens_by_tier.values()) == stats.tokens
    for stage in stats.stages:
        # Every verification is one forward; the others of that tier drafted (a bottom tier that verified in other blocks).
        assert stage.rounds <= stats.forwards[stage.tier]
    forwards = Counter(f.tier for block in stats.blocks for f in block.forwards)
    assert stats.forwards == dict(sorted(passes.items())) == dict(sorted(forwards.items()))
    for tier in passes:
        assert sum(f.width for block in stats.blocks for f in block.forwards if f.tier == tier) == read[tier]
    # Lemma 3.1 on counters from the hooks, with any costs.
    from_target = [passes[tier] for tier in sorted(passes, reverse=True)]
    costs = [1.0 / (i + 1) for i in range(len(from_target))]
    assert polybasic_seconds(stats.tokens, from_target, costs) == pytest.approx(
        sum(f * c for f, c in zip(from_target, costs))
    )


def polybasic_seconds(tokens: int, forwards: Sequence[int], costs: Sequence[float]) -> float:
    """Lemma 3.1 of arXiv 2510.26527, target first: T = sum_{i<n} (N / L_i) T_i + beta (N / L_{n-1}) T_n.

    With L_i = N / F_i and beta = F_n / F_{n-1} from counters this is an identity: sum of F_i T_i.
    """
    lengths = [tokens / count for count in forwards]
    if len(forwards) == 1:
        return tokens / lengths[0] * costs[0]
    beta = forwards[-1] / forwards[-2]
    total = sum(tokens / length * cost for length, cost in zip(lengths[:-1], costs[:-1]))
    return total + beta * (tokens / lengths[-2]) * costs[-1]
