"""Draws have 53 bits: what is unlikely can be drawn, as often as its probability says, in every rule and both kinds of noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adaptive_pyramid.decoding.sampling import KeyedNoise, PrivateNoise, Sampler
from adaptive_pyramid.decoding.tokens import Tokens
from adaptive_pyramid.decoding.verify import Proposal, Verifier

RARE, EACH = 50_000, 1e-8  # 50,000 tokens of probability 1e-8 each, and one that takes the rest
BITS = {torch.float32: 24, torch.float64: 53}  # of what torch.rand gives: multiples of 2^-24 and of 2^-53


@pytest.fixture
def generator_at(monkeypatch):
    """`generator_at(u, ...)`: the next call of torch.rand finds the generator at u, and gives it the bits that its dtype has."""
    values: list[float] = []

    def rand(n: int, generator=None, device=None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        assert n == len(values)
        return torch.tensor([math.floor(u * 2 ** BITS[dtype]) / 2 ** BITS[dtype] for u in values], dtype=dtype)

    def at(*uniforms: float) -> None:
        values[:] = uniforms

    monkeypatch.setattr(torch, "rand", rand)
    return at


def rare_logits() -> torch.Tensor:
    logits = torch.full((1, RARE + 1), math.log(EACH))
    logits[0, 0] = math.log(1 - RARE * EACH)
    return logits


def test_torch_gives_the_bits_that_these_tests_assume():
    uniforms = PrivateNoise(3).uniform(2000, torch.device("cpu"))
    assert uniforms.dtype == torch.float64 and 0 <= uniforms.min() and uniforms.max() < 1
    assert (uniforms * 2.0**53).frac().eq(0).all() and (uniforms * 2.0**52).frac().ne(0).any()
    single = torch.rand(2000, generator=torch.Generator().manual_seed(3))
    assert (single.double() * 2.0**24).frac().eq(0).all()


def middles(p: torch.Tensor, tokens: range) -> list[float]:
    """The middle of each token's interval in [0, 1)."""
    ends = p.double().cumsum(0)
    ends = ends / ends[-1]
    return [float(ends[token - 1] + ends[token]) / 2 for token in tokens]


def test_every_unlikely_token_can_be_drawn(generator_at):
    p, noise, tokens = Sampler.distributions(rare_logits()), PrivateNoise(0), range(20_000, 21_000)
    uniforms = middles(p[0], tokens)
    drawn = []
    for i in range(0, 1000, 100):
        generator_at(*uniforms[i : i + 100])
        drawn += noise.draw(p.expand(100, -1), position=0).tolist()
    assert drawn == list(tokens)  # with uniforms of 24 bits 168 of them


@pytest.mark.parametrize("rule", ["exact", "relaxed", "match", "fuzzy"])
def test_every_unlikely_token_can_be_emitted_by_a_verifier(generator_at, rule):
    """As its own token without a proposal, as the token after an accepted one, and in place of a refused one."""
    sampler, logits = Sampler(True), rare_logits()
    verifier = Verifier(rule, "js", sampler, PrivateNoise(0))
    p = sampler.distributions(logits)
    two, tokens = logits.expand(2, -1), range(30_000, 30_020)
    reached: dict[str, list[int]] = {"alone": [], "bonus": [], "replacement": []}
    # All that q has more of than p stands at token 0, so the residual is what it has less of: the unlikely tokens.
    q = p.clone()
    q[0, 1:] *= 0.5
    q[0, 0] = 1 - q[0, 1:].sum()
    left = (p.double() - q).clamp_min(0)
    for token, u in zip(tokens, middles(p[0], tokens)):
        generator_at(u)
        reached["alone"] += verifier.verify(None, logits, logits, 0.0, 7, with_entropies=False).tokens
        generator_at(0.5, u)
        verdict = verifier.verify(Proposal(Tokens([0]), 0, [0], distributions=p, logits=logits), two, two, 0.0, 7)
        assert verdict.n_accepted == 1
        reached["bonus"] += verdict.tokens[1:]
        (u,) = middles(left[0], range(token, token + 1)) if rule in ("exact", "relaxed") else (u,)
        generator_at(*((1 - 1e-9, u) if rule in ("exact", "relaxed") else (u, 0.5)))
        verdict = verifier.verify(Proposal(Tokens([0]), 0, [0], distributions=q, logits=logits), two, two, 0.0, 7)
        assert verdict.n_accepted == 0
        reached["replacement"] += verdict.tokens
    assert reached == dict.fromkeys(reached, list(tokens))


def test_an_unlikely_token_is_accepted_as_seldom_as_it_should(generator_at):
    """A lookup proposes a token of probability 1e-8: a uniform of 24 bits is 0, and accepts it, six times too often."""
    sampler, logits = Sampler(True), rare_logits().expand(2, -1)
    verifier = Verifier("exact", "js", sampler, PrivateNoise(0))
    for u, accepted in ((0.0, 1), (0.9e-8, 1), (1.1e-8, 0), (4e-8, 0), (0.5, 0)):
        generator_at(u, 0.5)
        assert verifier.verify(Proposal(Tokens([77]), 0, [0]), logits, logits, 0.0, 7).n_accepted == accepted, u
    # And a draft's own: accepted with probability p / q = 1 - 2^-20.
    q = sampler.distributions(logits[:1])
    q[0, 77] *= 1 + 2.0**-20
    for u, accepted in ((1 - 2.0**-19, 1), (1 - 2.0**-21, 0), (1 - 2.0**-40, 0)):
        generator_at(u, 0.5)
        proposal = Proposal(Tokens([77]), 0, [0], distributions=q, logits=logits[:1])
        assert verifier.verify(proposal, logits, logits, 0.0, 7).n_accepted == accepted, u


def test_keyed_draws_reach_unlikely_tokens_as_often_as_they_should():
    """The winner among tokens of 1e-8 is decided by noise of 53 bits: each of them wins somewhere, and none twice as often."""
    p = Sampler.distributions(rare_logits())
    p[0, 0] = 0.0  # given that an unlikely one comes up: which
    noise = KeyedNoise(1, RARE + 1)
    n = 1500
    drawn = np.array([int(noise.draw(p, position)) for position in range(n)])
    expected = RARE * (1 - (1 - 1 / RARE) ** n)  # distinct ones among n fair draws
    assert drawn.min() >= 1 and abs(len(set(drawn)) - expected) < 5 * np.sqrt(n**2 / (2 * RARE))
