"""A scorer's logits are those of a fresh forward over the whole text, whatever it was shown before.

Outputs stay right when a *draft's* cache is wrong (its proposals are only refused more often), so caches are tested here by
themselves, and not through texts.
"""

from __future__ import annotations

import random

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.scorer import Scorer
from adaptive_pyramid.decoding.tokens import Tokens, TokenSequence
from adaptive_pyramid.request import GenerationRequest
from tests.engine import counted_forwards
from tests.tiny import ARCHITECTURES, graded_family, tiny_model

torch.set_num_threads(1)


def fresh_logits(model, ids: list[int], last: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -last:].float()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_equal_a_fresh_forward_on_any_walk(arch):
    """Texts that grow, drafts that come and go, unverified middles that are replaced, other texts in between."""
    model = tiny_model(arch)
    rng = random.Random(0)

    def some(most: int) -> list[int]:
        # Few different ids, so that replaced texts often agree with the cached ones for a while.
        return [rng.randrange(4, 7) for _ in range(rng.randint(1, most))]

    with torch.inference_mode():
        scorer = Scorer.alone(model)
        texts = [TokenSequence([4, 5, 6]), TokenSequence([4, 5, 4])]
        for _ in range(120):
            text = rng.choice(texts) if rng.random() < 0.2 else texts[0]
            known = len(text)
            if rng.random() < 0.5:
                text.ids += some(5)  # what a middle tier has emitted so far
            drafted = Tokens(some(5) if rng.random() < 0.7 else [])
            last = rng.randint(1, len(drafted) + 1)
            assert_equal(model, scorer, text, drafted, last)
            for _ in range(rng.randint(0, 3)):  # the drafting loop: one more token on the same tail
                drafted.append(torch.tensor(some(1)))
                assert_equal(model, scorer, text, drafted, 1)
            del text.ids[known:]
            if rng.random() < 0.6:
                text.accept(some(4))
            if len(text) > 40:
                texts[texts.index(text)] = TokenSequence(text.ids[: rng.randint(1, 20)] + some(2))


def test_a_cache_that_outgrows_its_room_keeps_what_it_holds():
    model = tiny_model("llama")
    scorer, rng = Scorer.alone(model), random.Random(0)
    text = TokenSequence([rng.randrange(4, 60) for _ in range(240)])
    with torch.inference_mode():
        for _ in range(8):  # the first room is for half as much again as the first text
            assert_equal(model, scorer, text, Tokens([rng.randrange(4, 60) for _ in range(20)]), 21)
            text.accept(rng.randrange(4, 60) for _ in range(25))


def assert_equal(model, scorer: Scorer, text: TokenSequence, drafted: Tokens, last: int) -> None:
    logits = scorer.logits(text, drafted, last)
    torch.testing.assert_close(
        logits, fresh_logits(model, text.ids + drafted.tensor().tolist(), last), rtol=1e-6, atol=1e-6
    )


def test_every_tier_proposes_what_its_model_says():
    """Inside a pyramid: each tier's greedy proposals are its own model's choices in their context, block after block."""
    family = graded_family("llama", 3)
    decoder = PyramidDecoder(family)
    decoding = decoder.start(GenerationRequest((1, 10, 11), max_new_tokens=60))
    refused = 0
    seen: list[tuple[int, list[int], list[int]]] = []
    for tier in (0, 1):
        proposer = decoder._drafters[tier]
        seen_by(proposer, seen)
    rng = random.Random(1)
    while not decoding.finished:
        block = decoding.step(
            PyramidConfig.simple(
                [rng.choice((1, 2, 5)), rng.choice((2, 6))], route=rng.choice([(0, 1, 2), (0, 2), (1, 2)])
            )
        )
        refused += sum(v.rejected for v in block.stats.verifications)
    assert refused > 5 and len(seen) > 10
    for tier, context, proposed in seen:
        rows = fresh_logits(family[tier], context + proposed, len(proposed) + 1)[:-1]
        assert rows.argmax(-1).tolist() == proposed


def seen_by(proposer, seen) -> None:
    propose = proposer.propose

    def watched(run, *args):
        proposal = propose(run, *args)
        if proposal is not None:
            seen.append((proposer.tier, list(run.sequence.ids), proposal.tokens.host_ids()))
        return proposal

    proposer.propose = watched


def test_cost_of_a_forward_does_not_grow_with_what_is_cached():
    """Only new ids are read, and verified ids are compared once: the scan restarts at what is known to agree."""
    model = tiny_model("llama")
    scorer = Scorer.alone(model)
    text = TokenSequence(list(range(4, 34)) * 10)
    with counted_forwards([model]) as (_, read), torch.inference_mode():
        scorer.logits(text, Tokens(), 1)
        assert read[0] == 300

        class Counting(list):
            reads = 0

            def __getitem__(self, index):
                Counting.reads += isinstance(index, int)
                return super().__getitem__(index)

        text.accept([4])
        scorer.logits(text, Tokens(), 1)  # everything cached is compared here, and then never again
        text.ids = Counting(text.ids)
        for step in range(20):
            text.accept([5 + step])
            scorer.logits(text, Tokens(), 1)
        assert read[0] == 321
        assert 0 < Counting.reads <= 3 * 20


def test_nothing_is_read_twice_after_a_full_acceptance_or_a_refusal():
    model = tiny_model("gpt2")
    scorer = Scorer.alone(model)
    text = TokenSequence([4, 5, 6])
    with counted_forwards([model]) as (_, read), torch.inference_mode():
        scorer.logits(text, Tokens([7, 8]), 3)
        text.accept([7, 8, 9])
        scorer.logits(text, Tokens([10, 11]), 3)  # 9, 10, 11
        assert read[0] == 5 + 3
        text.accept([12])
        scorer.logits(text, Tokens([13]), 2)  # 12, 13: both drafts were refused
        assert read[0] == 5 + 3 + 2
        assert scorer.reusable(TokenSequence([4, 5, 6, 7, 8, 9, 50])) == 6
