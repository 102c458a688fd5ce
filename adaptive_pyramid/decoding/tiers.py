"""The recursion: a stage asks the tier below for tokens, verifies them, and may itself be asked.

    tier 0: propose(n, cap)   up to n tokens from a draft (a lookup may abstain)
    tier k: round(cap)        one proposal from below, one forward over it, one verdict
    tier k: propose(n, cap)   rounds until at least n tokens are there; only `cap` clips, EOS ends it early

Three models are `Stage(T, Stage(Q, draft))`, two are `Stage(T, draft)`; any further tier is one line more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from ..config import StageConfig
from ..stats import Verification
from .divergence import entropy
from .drift import DriftBudget
from .sampling import Noise, Sampler
from .scorer import Scorer
from .tokens import Tokens, TokenSequence
from .verify import Proposal, Verdict, Verifier


@dataclass(slots=True)
class Run:
    """One request in progress: what all its tiers share."""

    sequence: TokenSequence
    sampler: Sampler
    noise: Noise | None
    eos: frozenset[int]
    budget: DriftBudget | None = None
    verifications: list[Verification] = field(default_factory=list)


class Proposer(Protocol):
    """Whatever can stand below a stage."""

    tier: int

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        """About n tokens that continue `run.sequence`, never more than `cap`; None to abstain.

        Args:
            stop: end after a token whose distribution had more entropy than this (nats); None = never.
            with_logits: bring the proposing tier's own unprocessed logits.
        """


class Stage:
    """One tier verifying what `below` proposes (None: nothing, one token per forward)."""

    def __init__(self, scorer: Scorer, below: Proposer | None, config: StageConfig, verifier: Verifier) -> None:
        self.scorer = scorer
        self.tier = scorer.tier
        self.below = below
        self.config = config
        self.verifier = verifier

    def round(
        self, run: Run, cap: int, budget: DriftBudget | None = None, with_entropies: bool = True
    ) -> tuple[Verdict, list[int]]:
        """One verification, emitting between 1 and `cap` tokens. -> (verdict, tier that drafted each token)

        The verdict is cut after the first EOS. `with_entropies=False` leaves them to the tier above, see `_told`.
        """
        room = min(cap - 1, self.scorer.room(run.sequence))
        proposal, first = None, len(run.verifications)
        if self.below is not None and room > 0:
            proposal = self.below.propose(
                run, min(self.config.length, room), room, self.config.stop, self.verifier.compares_logits
            )
        tail = Tokens() if proposal is None else proposal.tokens
        logits = self.scorer.logits(run.sequence, tail, last=len(tail) + 1)
        scores = run.sampler.scores(logits, run.sequence, tail)
        verdict = self.verifier.verify(
            proposal, logits, scores, self.config.tau, len(run.sequence), budget, with_entropies
        )
        if proposal is not None:
            run.verifications[first:] = _told(run.verifications[first:], proposal.proposer, verdict.proposal_entropy)
        refused = verdict.n_accepted < len(tail)
        if _cut_after_eos(verdict, run.eos):
            refused = False
        drafted = [] if proposal is None else proposal.origins[: verdict.n_accepted]
        origins = drafted + [self.tier] * (len(verdict.tokens) - verdict.n_accepted)
        run.verifications.append(
            Verification(
                tier=self.tier,
                proposer=None if proposal is None else proposal.proposer,
                proposed=len(tail),
                accepted=verdict.n_accepted,
                rejected=int(refused),
                emitted=len(verdict.tokens),
                relaxed=sum(verdict.loosened),
                entropy=tuple(verdict.entropies),
                proposal_entropy=tuple(verdict.proposal_entropy),
                divergence=tuple(verdict.divergences),
                distance=tuple(verdict.distances),
            )
        )
        return verdict, origins

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        # Rounds are not clipped to n: overshooting by part of a round is cheaper than wasting it.
        verdicts: list[Verdict] = []
        tokens: list[int] = []
        origins: list[int] = []
        known = len(run.sequence)
        try:
            while len(tokens) < n and self.scorer.room(run.sequence) >= 0:
                verdict, drafted = self.round(run, cap - len(tokens), with_entropies=stop is not None)
                verdicts.append(verdict)
                tokens += verdict.tokens
                origins += drafted
                run.sequence.ids += verdict.tokens
                if verdict.tokens[-1] in run.eos:
                    break
                if stop is not None and max(verdict.entropies[: len(verdict.tokens)]) > stop:
                    break
        finally:
            # Whatever happens up there, the text must not keep ids that the target has not verified.
            del run.sequence.ids[known:]
        if not tokens:
            return None
        logits = torch.cat([v.logits for v in verdicts])
        return Proposal(
            Tokens(tokens, self.scorer.device),
            self.tier,
            origins,
            distributions=torch.cat([v.distributions for v in verdicts]) if run.sampler.do_sample else None,
            logits=logits if with_logits else None,
            entropy=entropy(logits),
        )


class FirstOf:
    """The first of several proposers that does not abstain."""

    def __init__(self, proposers: list[Proposer]) -> None:
        self.proposers = proposers
        self.tier = proposers[0].tier

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        for proposer in self.proposers:
            proposal = proposer.propose(run, n, cap, stop, with_logits)
            if proposal is not None:
                return proposal
        return None


def _told(verifications: list[Verification], tier: int, entropies: list[float]) -> list[Verification]:
    """`verifications` with what the tier above has read of `tier`'s entropies: one per emitted token, in order.

    Rounds of a mid tier are short and many. Their entropies, one call for all of them, come to the host with the next
    verdict above; positions behind a refusal stay NaN.
    """
    told, start = [], 0
    for v in verifications:
        if v.tier == tier:
            known = entropies[start : start + v.emitted]
            start += v.emitted
            if not v.entropy:
                v = replace(v, entropy=(*known, *[math.nan] * (v.proposed + 1 - len(known))))
        told.append(v)
    return told


def _cut_after_eos(verdict: Verdict, eos: frozenset[int]) -> bool:
    """Drop what stands behind the first EOS among the accepted tokens. -> whether something was dropped or EOS accepted"""
    for i, token in enumerate(verdict.tokens[: verdict.n_accepted]):
        if token in eos:
            verdict.truncate(i + 1)
            return True
    return False
