"""The target's own answers, and what every tier would have said at each of their positions: recorded once, replayed often.

One forward of each tier over an answer gives its greedy token at every position. Along the target's text that is all
that greedy decoding ever asks of a tier, so any route, any lengths and any thresholds can be replayed from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.divergence import divergence, entropy
from adaptive_pyramid.decoding.sampling import Sampler
from adaptive_pyramid.decoding.tiers import Run
from adaptive_pyramid.decoding.tokens import Sequence as Text, Tokens
from adaptive_pyramid.decoding.verify import point_logits

LONGEST_PROPOSAL = 24   # ids kept per position of a tier without a model


@dataclass(frozen=True)
class Trace:
    """One answer of n tokens.

    Args:
        prompt_length: tokens. text: the target's n ids.
        best: tier with a model -> its most likely id at each position, given the target's text before it.
        regret: verifying tier -> per position {id: log p(best) - log p(id)} in nats, for the ids that lower tiers propose.
        divergence: (proposer, verifier) -> the method's divergence between both distributions at each position; for a
            proposer without a model, between the verifier's and the point mass on the text's own token.
        found: tier without a model -> the ids it proposes at each position, at most LONGEST_PROPOSAL.
        entropy: tier with a model -> nats of its distribution at each position.
    """

    prompt_length: int
    text: list[int]
    best: dict[int, list[int]]
    regret: dict[int, list[dict[int, float]]]
    divergence: dict[tuple[int, int], list[float]]
    found: dict[int, list[list[int]]]
    entropy: dict[int, list[float]] = field(default_factory=dict)

    def accepts(self, rule: str, tau: float, proposer: int | None, verifier: int, position: int, token: int) -> bool:
        """Whether `verifier` keeps `token`, proposed for `position` by `proposer`, in greedy decoding."""
        if token == self.best[verifier][position]:
            return True
        if not tau or rule not in ("fuzzy", "relaxed"):
            return False
        if rule == "relaxed":
            return self.regret[verifier][position].get(token, math.inf) <= tau
        known = proposer not in self.found or token == self.text[position]
        return known and self.divergence[proposer, verifier][position] <= tau

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "prompt_length": self.prompt_length, "text": self.text, "best": self.best, "found": self.found,
            "regret": {tier: [[[token, round(value, 5)] for token, value in row.items()] for row in rows]
                       for tier, rows in self.regret.items()},
            "entropy": {tier: [round(value, 4) for value in values] for tier, values in self.entropy.items()},
            "divergence": [[*pair, [round(value, 5) for value in values]] for pair, values in self.divergence.items()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        def by_tier(name: str) -> dict[int, Any]:
            return {int(tier): value for tier, value in data[name].items()}

        return cls(data["prompt_length"], data["text"], by_tier("best"),
                   {tier: [dict(map(tuple, row)) for row in rows] for tier, rows in by_tier("regret").items()},
                   {(low, high): values for low, high, values in data["divergence"]}, by_tier("found"),
                   by_tier("entropy"))


def record(decoder: PyramidDecoder, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], divergence_name: str = "js",
           progress: Callable[[], None] = lambda: None) -> list[Trace]:
    """One Trace per answer. Tiers that cannot read a text (a shorter context, another vocabulary) raise IndexError there.

    `progress` is called after each answer.
    """
    traces = []
    for prompt, answer in zip(prompts, answers):
        traces.append(_trace(decoder, list(prompt), list(answer), divergence_name))
        progress()
    decoder.clear_caches()
    return traces


@torch.inference_mode()
def _trace(decoder: PyramidDecoder, prompt: list[int], answer: list[int], divergence_name: str) -> Trace:
    text = Text(prompt + answer[:-1])
    logits = {tier: scorer.logits(text, Tokens(), last=len(answer)).cpu() for tier, scorer in decoder.scorers.items()}
    best = {tier: rows.argmax(-1).tolist() for tier, rows in logits.items()}
    # In half precision a wide forward may break a near-tie otherwise than the narrow one that wrote the text did.
    best[decoder.target] = list(answer)
    found = {tier: _proposals(decoder, tier, prompt, answer) for tier in range(decoder.target) if tier not in decoder.scorers}
    regret = {}
    for tier, rows in logits.items():
        below = [best[low] for low in best if low < tier] + [[ids[0] if ids else -1 for ids in rows_] for rows_ in found.values()]
        regret[tier] = _regrets(rows, [answer, *below])
    points = point_logits(torch.tensor(answer), decoder.vocab_size)
    compare = divergence(divergence_name)
    distance = {(low, high): compare(rows, logits.get(low, points)).tolist() for high, rows in logits.items() for low in range(high)}
    return Trace(len(prompt), answer, best, regret, distance, found, {tier: entropy(rows).tolist() for tier, rows in logits.items()})


def _regrets(logits: torch.Tensor, proposals: list[list[int]]) -> list[dict[int, float]]:
    """Per position, how much less likely than the best each proposed id is, in nats."""
    top = logits.max(-1).values
    rows: list[dict[int, float]] = [{} for _ in range(len(top))]
    for ids in proposals:
        known = torch.tensor(ids).clamp_min(0)
        values = (top - logits.gather(-1, known[:, None])[:, 0]).tolist()
        for row, token, value in zip(rows, ids, values):
            if token >= 0:
                row[token] = value
    return rows


def _proposals(decoder: PyramidDecoder, tier: int, prompt: list[int], answer: list[int]) -> list[list[int]]:
    """What the model-less drafter `tier` proposes before each token of the answer."""
    text = Text(prompt)
    run = Run(text, Sampler(False, None), None, frozenset())
    rows = []
    for token in answer:
        proposal = decoder._drafters[tier].propose(run, LONGEST_PROPOSAL, LONGEST_PROPOSAL, None, False)
        rows.append([] if proposal is None else proposal.tokens.host_ids())
        text.accept([token])
    return rows
