"""Outputs of the whole engine, counted, against exact enumeration of the target; and wrong engines that must not pass.

Models are tables over two previous ids whose cache is the text (`toys.TableModel`). Seeds are fixed: a p-value below 1e-4 is
a bug, not bad luck.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import CandidateGenerator

from adaptive_pyramid.config import PyramidConfig, StageConfig
from adaptive_pyramid.decoding import drafters
from adaptive_pyramid.decoding.drafters import ModelDrafter, PromptLookup
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.decoding.sampling import Sampler
from adaptive_pyramid.decoding.tiers import Stage
from adaptive_pyramid.decoding.tokens import Tokens
from adaptive_pyramid.decoding.verify import Proposal
from adaptive_pyramid.stats import BlockStats
from tests.toys import (
    PROMPT,
    VOCAB,
    chi_square_p,
    exact_distribution,
    sampled_outputs,
    toy_decoder,
    toy_tables,
)

RUNS = 900
LEAST = 1e-4
EOS = 3


class Dice(CandidateGenerator):
    """A foreign generator that draws candidates from a table of its own: to the engine they are point masses."""

    requires_model_outputs = False

    def __init__(self, table: torch.Tensor, length: int) -> None:
        self.distributions = torch.softmax(table, -1)
        self.length = length
        self.generator = torch.Generator().manual_seed(0)

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        ids = input_ids[0].tolist()
        for _ in range(self.length):
            ids.append(int(torch.multinomial(self.distributions[ids[-2], ids[-1]], 1, generator=self.generator)))
        return torch.tensor([ids]), None

    def update_candidate_strategy(self, *_: Any) -> None:
        raise AssertionError("the engine does not know how many of its tokens a foreign generator wants back")


@dataclass(frozen=True, eq=False)
class Case:
    """One way of decoding. `tiers`: tables, lookups, generators; the last is the target."""

    tiers: list[Any]
    config: Any
    method: Any
    request: dict[str, Any] = field(default_factory=dict)
    prompt: tuple[int, ...] = PROMPT

    def p_value(self, runs: int = RUNS) -> float:
        # Cases of equal methods would otherwise share their seeds, and with them their luck.
        first_seed = 1_000_000 * (1 + list(CASES.values()).index(self))
        counts = sampled_outputs(
            toy_decoder(self.tiers), self.config, self.method, runs, first_seed, prompt=self.prompt, **self.request
        )
        enumerated = {name: value for name, value in self.request.items() if name != "seeded"}
        return chi_square_p(counts, exact_distribution(self.tiers[-1], prompt=self.prompt, **enumerated))


def adapted(blocks: list[BlockStats]) -> PyramidConfig:
    """Lengths, taus, early stop and route from what the last block showed, refused positions included."""
    if not blocks:
        return PyramidConfig.simple([2, 2], [0.27, 0])
    seen = blocks[-1].verifications[-1]
    if not seen.rejected:
        return PyramidConfig((StageConfig(1, 0.35, stop=0.9), StageConfig(4)))
    if seen.entropy[-1] > 1.0:  # a position behind the refusal: its ids never become output
        return PyramidConfig.simple([1, 1], route=(0, 2))
    return PyramidConfig.simple([3, 2], [0.1, 0], route=(1, 2) if seen.proposed > 1 else (2,))


THREE = toy_tables(3, (0.9, 1.0), seed=3)
FOUR = toy_tables(4, (0.6, 0.7, 0.8), seed=1)
REPETITIVE = (1, 2, 0, 1, 2, 3, 3, 0, 1, 2)  # lookups find "1 2" and "0 1 2"

CASES = {
    "exact": Case(THREE, PyramidConfig.simple([2, 3], route=(0, 2)), "sd"),
    "exact/exact": Case(THREE, PyramidConfig.simple([2, 3]), "polybasic"),
    "fuzzy Q, exact T": Case(THREE, PyramidConfig.simple([2, 3], [0.27, 0]), Method("m", "fuzzy", "exact", "tv")),
    "relaxed Q, exact T": Case(THREE, PyramidConfig.simple([2, 3], [0.27, 0]), "pyramid"),
    "match Q, exact T": Case(THREE, PyramidConfig.simple([1, 3]), Method("m", "match", "exact")),
    "exact Q, match T": Case(THREE, PyramidConfig.simple([2, 2]), Method("m", "exact", "match")),
    "relaxed, relaxed, exact": Case(FOUR, PyramidConfig.simple([1, 2, 3], [0.2, 0.2, 0]), "pyramid", {"new": 4}),
    "fuzzy, fuzzy, exact": Case(
        FOUR, PyramidConfig.simple([2, 2, 2], [0.02, 0.02, 0]), Method("m", "fuzzy", "exact", "js")
    ),
    "keyed match": Case(THREE, PyramidConfig.simple([2, 3], [0.27, 0]), "pyramid", {"seeded": True}),
    "lookup": Case([PromptLookup(3, 1), THREE[2]], PyramidConfig.simple([3]), "sd", prompt=REPETITIVE),
    "lookup, relaxed Q, T": Case(
        [PromptLookup(3, 1), THREE[1], THREE[2]], PyramidConfig.simple([2, 3], [0.9, 0]), "pyramid", prompt=REPETITIVE
    ),
    "first of lookup and draft": Case(
        [PromptLookup(3, 2), *THREE],
        PyramidConfig.simple([1, 2, 3], [0, 0.3, 0], ((0, 1), 2, 3)),
        "pyramid",
        prompt=REPETITIVE,
    ),
    "foreign generator": Case([Dice(THREE[0], 2), *THREE[1:]], PyramidConfig.simple([2, 3], [0.3, 0]), "pyramid"),
    "early stop": Case(THREE, PyramidConfig((StageConfig(3, 0.27, stop=0.8), StageConfig(3, stop=0.9))), "pyramid"),
    "EOS": Case(THREE, PyramidConfig.simple([2, 3], [0.27, 0]), "pyramid", {"eos": (EOS, 0), "new": 4}),
    "top_k": Case(THREE, PyramidConfig.simple([2, 3], [0.27, 0]), "pyramid", {"top_k": 2, "temperature": 1.4}),
    "top_p, min_p": Case(
        THREE, PyramidConfig.simple([2, 3]), "polybasic", {"top_p": 0.8, "min_p": 0.1, "temperature": 0.8}
    ),
    "adaptation": Case(THREE, adapted, "pyramid", {"new": 4}),
    "larger vocabularies below": Case(
        [*toy_tables(2, vocab=VOCAB + 2, seed=4), THREE[2]], PyramidConfig.simple([2, 3], [0.3, 0]), "pyramid"
    ),
    "smaller vocabularies below": Case(
        [THREE[0], THREE[1], toy_tables(1, vocab=VOCAB + 1, seed=6)[0]],
        PyramidConfig.simple([2, 3], [0.3, 0]),
        "pyramid",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_have_the_targets_distribution(name):
    assert CASES[name].p_value() > LEAST


# Wrong engines: each must fail the very test above.


def tests_against_the_qualifiers_distribution(monkeypatch):
    """What tokens were drawn from is forgotten: what Q emits counts as drawn from Q's own distribution, relaxed or not."""
    propose = Stage.propose

    def forgetful(self, run, *args, **kwargs):
        proposal = propose(self, run, *args, **kwargs)
        if proposal is not None:
            known = len(run.sequence)
            run.sequence.ids += proposal.tokens.host_ids()
            rows = self.scorer.logits(run.sequence, Tokens(), last=len(proposal) + 1)[:-1]
            proposal.distributions = Sampler.distributions(run.sampler.scores(rows, run.sequence, Tokens()))
            del run.sequence.ids[known:]
        return proposal

    monkeypatch.setattr(Stage, "propose", forgetful)


def drops_an_unlikely_drawn_token(monkeypatch):
    """Drafting ends before a drawn token of low probability, instead of behind it."""
    propose = ModelDrafter.propose

    def choosy(self, run, n, cap, stop, with_logits):
        proposal = propose(self, run, n, cap, stop, with_logits)
        if proposal is None or stop is None:
            return proposal
        ids = proposal.tokens.host_ids()
        drawn = proposal.distributions.gather(1, torch.tensor(ids)[:, None])[:, 0]
        keep = next((i for i, p in enumerate(drawn) if p < 0.45), len(ids))
        return (
            Proposal(Tokens(ids[:keep]), self.tier, [self.tier] * keep, distributions=proposal.distributions[:keep])
            if keep
            else None
        )

    monkeypatch.setattr(ModelDrafter, "propose", choosy)


def returns_draft_distributions_without_their_top_k(monkeypatch):
    """Tokens are drawn with top_k; what comes with them is the distribution before it."""
    propose = ModelDrafter.propose

    def careless(self, run, n, cap, stop, with_logits):
        proposal = propose(self, run, n, cap, stop, with_logits=True)
        if proposal is not None:
            proposal.distributions = torch.softmax(proposal.logits / 1.4, -1)
        return proposal

    monkeypatch.setattr(ModelDrafter, "propose", careless)


def ignores_the_drafts_temperature(monkeypatch):
    propose = ModelDrafter.propose

    def cold(self, run, *args):
        proposal = propose(self, run, *args[:-1], True)
        if proposal is not None:
            proposal.distributions = torch.softmax(proposal.logits, -1)
        return proposal

    monkeypatch.setattr(ModelDrafter, "propose", cold)


def draws_the_correction_from_p(monkeypatch):
    """A refused token is replaced by a draw from p, not from the residual."""
    monkeypatch.setattr("adaptive_pyramid.decoding.verify.residual", lambda p, distribution: p)


def treats_lookups_as_drawn_from_p(monkeypatch):
    """A lookup's distribution is taken for something softer than a point mass."""
    propose = drafters.PromptLookupDrafter.propose

    def soft(self, run, *args):
        proposal = propose(self, run, *args)
        if proposal is not None:
            proposal.distributions = torch.full((len(proposal), VOCAB), 1 / VOCAB)
        return proposal

    monkeypatch.setattr(drafters.PromptLookupDrafter, "propose", soft)


def continues_behind_eos(monkeypatch):
    monkeypatch.setattr("adaptive_pyramid.decoding.tiers._cut_after_eos", lambda verdict, eos: False)
    propose = ModelDrafter.propose
    monkeypatch.setattr(
        ModelDrafter, "propose", lambda self, run, *args: propose(self, replace(run, eos=frozenset()), *args)
    )


def forgets_to_roll_back(monkeypatch):
    """A cache that keeps refused drafts."""
    monkeypatch.setattr("transformers.DynamicCache.crop", lambda self, n: None)


WRONG = [
    (tests_against_the_qualifiers_distribution, "fuzzy Q, exact T"),
    (tests_against_the_qualifiers_distribution, "relaxed Q, exact T"),
    (tests_against_the_qualifiers_distribution, "relaxed, relaxed, exact"),
    (tests_against_the_qualifiers_distribution, "lookup, relaxed Q, T"),
    (drops_an_unlikely_drawn_token, "early stop"),
    (returns_draft_distributions_without_their_top_k, "top_k"),
    (ignores_the_drafts_temperature, "top_p, min_p"),
    (draws_the_correction_from_p, "exact"),
    (draws_the_correction_from_p, "exact/exact"),
    (treats_lookups_as_drawn_from_p, "lookup"),
    (continues_behind_eos, "EOS"),
    (forgets_to_roll_back, "exact/exact"),
]


@pytest.mark.parametrize(("wrong", "name"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_wrong_engines_fail_the_same_test(wrong, name, monkeypatch):
    wrong(monkeypatch)
    assert any(CASES[name].p_value(runs) < LEAST for runs in (300, RUNS, 2 * RUNS))


def test_all_that_can_happen_happened():
    """The cases above are worth something only if tokens are accepted and refused, and blocks end in all the ways there are."""
    happened = dict.fromkeys(("accept", "reject", "bonus", "eos", "clip", "overshoot", "relaxed", "not relaxed"), 0)
    tested = accepted = 0

    def watch(decoding, blocks):
        nonlocal tested, accepted
        for verification in (v for block in blocks for v in block.verifications):
            accepted += verification.accepted
            tested += verification.tested
            happened["accept"] += verification.accepted > 0
            happened["reject"] += verification.rejected
            happened["bonus"] += verification.emitted == verification.proposed + 1 > 1
            happened["relaxed"] += verification.relaxed > 0
            happened["not relaxed"] += any(
                d > tau for d, tau in zip(verification.distance, [case.config.stage(verification.tier).tau] * 9)
            )
            happened["overshoot"] += verification.tier == 2 and verification.proposed > 2
        happened["eos"] += decoding.finish_reason == "eos"
        happened["clip"] += decoding.finish_reason == "length" and blocks[-1].verifications[-1].proposed < 3

    case = CASES["EOS"]
    sampled_outputs(
        toy_decoder(case.tiers), case.config.with_stage(2, length=2), case.method, 300, on_finish=watch, **case.request
    )
    assert all(happened.values()), happened
    assert 0.2 < accepted / tested < 0.95
