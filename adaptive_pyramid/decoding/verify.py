"""One tier's verdict on a proposal: which tokens stand, what replaces the first that does not, and its distribution.

    rule     accepts x when                                    otherwise                          emits tokens distributed as
    exact    u < p(x) / q(x)                                   a draw from norm(max(0, p - q))    p
    match    x is the verifier's own draw y ~ p                y                                  p
    fuzzy    Div(p, s) <= tau, or as `match`                   y                                  q where Div <= tau, else p
    relaxed  TV(p, q) <= tau (greedy: regret <= tau nats),     residual draw, or y if coupled     q where TV <= tau, else p
             or as `exact` (as `match` where noise is coupled)

p is the verifier's distribution, s the proposing tier's own, q the one that x was really drawn from. Whether a stage
relaxes depends on the prefix alone, never on the token drawn (in sampling), so the distribution of what it emits is
known exactly, and a later `exact` test against that q is exact whatever the thresholds below. Sources: 2211.17192 and
2302.01318 (exact), 2502.20704 (fuzzy), 2510.12966 (thresholds per stage); `relaxed` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .divergence import IMPOSSIBLE, divergence, entropy, total_variation
from .drift import DriftBudget
from .sampling import Noise, Sampler, best, inverse_cdf, real_dtype
from .tokens import Tokens


@dataclass(slots=True)
class Proposal:
    """Tokens for a tier to verify.

    Args:
        tokens: m ids. proposer: the tier they come from. origins: per token, the tier that first drafted it.
        distributions: float32 [m, V]; row i is what tokens[i] was drawn from; None = point masses on the tokens.
        logits: float32 [m, V], the proposing tier's own unprocessed scores; None where it has none, or no rule asks.
        entropy: float32 [m] on the proposer's device, or None.
    """

    tokens: Tokens
    proposer: int
    origins: list[int]
    distributions: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Verdict:
    """What a verification emits: the accepted prefix and, before EOS, one token more. Host numbers, but for the tensors.

    Args:
        tokens: n_accepted + 1 ids. loosened: per accepted token, whether only tau let it through.
        drift: per emitted token, the distance of its distribution from the verifier's.
        distributions, logits: rows of the emitted tokens, as in Proposal (distributions None = point masses).
        scores: the verifier's processed scores at the emitted tokens, float32.
        entropies (one more; [] if not asked for), proposal_entropy, divergences, distances: by position of the proposal.
        near_ties: per emitted token, whether its runner-up lay within rounding (greedy, half precision).
    """

    n_accepted: int
    tokens: list[int]
    loosened: list[bool]
    drift: list[float]
    distributions: torch.Tensor | None
    logits: torch.Tensor
    scores: torch.Tensor
    entropies: list[float]
    proposal_entropy: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    near_ties: list[bool] = field(default_factory=list)

    def truncate(self, n: int) -> None:
        """Keep the first n of the accepted tokens and nothing behind them."""
        self.n_accepted = n
        for name in ("tokens", "loosened", "drift", "distributions", "logits", "scores", "near_ties"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[:n])


@dataclass(frozen=True, slots=True)
class Verifier:
    """A rule with everything of the request that it needs."""

    rule: str
    divergence_name: str
    sampler: Sampler
    noise: Noise | None
    rounding: float = 0.0  # relative rounding of the model's logits; above 0, near-ties are counted

    @property
    def compares_logits(self) -> bool:
        """Whether proposals must bring the proposing tier's own distribution."""
        return self.rule == "fuzzy"

    def verify(
        self,
        proposal: Proposal | None,
        logits: torch.Tensor,
        scores: torch.Tensor,
        tau: float,
        position: int,
        budget: DriftBudget | None = None,
        with_entropies: bool = True,
    ) -> Verdict:
        """The verdict on `proposal` (m tokens, None = 0).

        Args:
            logits, scores: float32 [m + 1, V], unprocessed and processed, on the verifier's device.
            tau: threshold of this stage. position: index of the first proposed token, for keyed noise.
            budget: pays for relaxed acceptances; None = unlimited. with_entropies: False leaves `Verdict.entropies` empty.

        One copy to the host at the end, whatever the rule.
        """
        if proposal is None:
            return self._unaided(logits, scores, position, with_entropies)
        m, device = len(proposal), logits.device
        x = proposal.tokens.tensor(device)
        decide = self._sampled if self.sampler.do_sample else self._greedy
        decision = decide(proposal, x, scores, position)
        loose = torch.zeros(m, dtype=torch.bool, device=device)
        divergences = self._divergences(proposal, logits[:m], decision.distance)
        if tau > 0 and self.rule in ("fuzzy", "relaxed"):
            loose = divergences <= tau
            if decision.possible is not None:
                loose &= decision.possible
            if budget is not None:
                loose = budget.grant(loose, decision.distance)
        n = (loose | decision.passes).long().cumprod(0).sum()[None]
        proposed_entropy = torch.full((m,), torch.nan, device=device)
        if proposal.entropy is not None:
            proposed_entropy = proposal.entropy.to(device)
        columns = [
            n,
            decision.replacement(n),
            x,
            loose,
            decision.passes,
            divergences,
            decision.distance,
            proposed_entropy,
        ]
        packed = _to_host([*columns, *self._on_every_row(logits, scores, decision.own, with_entropies)])
        return _unpack(packed, proposal, decision.distributions(loose), logits, scores, with_entropies)

    def _unaided(self, logits: torch.Tensor, scores: torch.Tensor, position: int, with_entropies: bool) -> Verdict:
        """A token of the verifier's own. A lookup abstains often, and then a mid tier's round is little but this."""
        p = self.sampler.distributions(scores) if self.sampler.do_sample else None
        own = best(scores) if p is None else self.noise.draw(p, position)
        token, *rest = _to_host([own, *self._on_every_row(logits, scores, own, with_entropies)])
        entropies, ties = (rest[:1], rest[1:]) if with_entropies else ([], rest)
        return Verdict(
            0, [_possible(token)], [], [0.0], p, logits, scores, entropies, near_ties=[bool(tie) for tie in ties]
        )

    def _on_every_row(
        self, logits: torch.Tensor, scores: torch.Tensor, own: torch.Tensor | None, with_entropies: bool
    ) -> list[torch.Tensor]:
        """What the statistics ask of every row of the verifier's own."""
        columns = [entropy(logits)] if with_entropies else []
        if self.rounding and not self.sampler.do_sample:
            columns.append(near_ties(scores, own, self.rounding))
        return columns

    def _greedy(self, proposal: Proposal, x: torch.Tensor, scores: torch.Tensor, position: int) -> _Decision:
        m = len(x)
        own = best(scores)
        regret = (scores[:m].gather(-1, own[:m, None]) - scores[:m].gather(-1, x[:, None]))[:, 0]
        return _Decision(
            x == own[:m],
            regret,
            replacement=lambda n: own.gather(0, n),
            distributions=lambda loose: None,
            possible=regret.isfinite(),
            own=own,
        )

    def _sampled(self, proposal: Proposal, x: torch.Tensor, scores: torch.Tensor, position: int) -> _Decision:
        m, vocabulary = len(x), scores.shape[-1]
        p = self.sampler.distributions(scores)
        p_x = p[:m].gather(-1, x[:, None])[:, 0]
        q = None if proposal.distributions is None else proposal.distributions.to(p.device)
        distance = 1.0 - p_x if q is None else total_variation(p[:m], q)
        possible = p_x > 0 if q is None else None

        def emitted_distributions(loose: torch.Tensor) -> torch.Tensor:
            if self.rule in ("exact", "match"):
                return p
            drawn_from = torch.nn.functional.one_hot(x, vocabulary).to(p.dtype) if q is None else q
            return torch.cat([torch.where(loose[:, None], drawn_from, p[:m]), p[m:]])

        if self.rule == "match" or self.rule == "fuzzy" or self.noise.coupled:
            own = self.noise.draw(p, position)
            return _Decision(
                x == own[:m],
                distance,
                replacement=lambda n: own.gather(0, n),
                distributions=emitted_distributions,
                possible=possible,
            )

        uniforms = self.noise.uniform(m + 1, p.device)
        q_x = torch.ones_like(p_x) if q is None else q.gather(-1, x[:, None])[:, 0]
        passes = accepts(p_x, q_x, uniforms[:m])

        def residual_draw(n: torch.Tensor) -> torch.Tensor:
            row = p.index_select(0, n)
            i = n.clamp_max(m - 1)
            point = torch.nn.functional.one_hot(x.index_select(0, i), vocabulary).to(p.dtype)
            below = point if q is None else q.index_select(0, i)
            row = torch.where(n < m, residual(row, below), row)
            return inverse_cdf(row, uniforms[m:])

        return _Decision(
            passes, distance, replacement=residual_draw, distributions=emitted_distributions, possible=possible
        )

    def _divergences(self, proposal: Proposal, logits: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        if self.rule != "fuzzy":
            return distance
        theirs = proposal.logits
        if theirs is None:
            # A lookup's own distribution is the point mass on what it found.
            theirs = point_logits(proposal.tokens.tensor(logits.device), logits.shape[-1])
        return divergence(self.divergence_name)(logits, theirs.to(logits.device))


@dataclass(slots=True)
class _Decision:
    """passes: bool [m], the rule at tau = 0. distance: float32 [m]. replacement(n: long [1]) -> long [1], the
    token after n accepted ones. distributions(loose) -> float32 [m + 1, V] or None (point masses).

    possible: bool [m], which tokens tau may let through. A lookup knows nothing of banned words, of min_new_tokens or of
    top_k, and no threshold may let it break them. A model's own draw obeys the same processors: None, for there a condition
    on the token drawn would change the distribution. own: long [m + 1], the verifier's own choices (greedy)."""

    passes: torch.Tensor
    distance: torch.Tensor
    replacement: Callable[[torch.Tensor], torch.Tensor]
    distributions: Callable[[torch.Tensor], torch.Tensor | None]
    possible: torch.Tensor | None = None
    own: torch.Tensor | None = None


def accepts(p_x: torch.Tensor, q_x: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The exact test u < p(x) / q(x), without the division. All [m] -> bool [m].

    In the dtype of the uniforms (`sampling.real_dtype`): a product in float32 would round them to 24 bits.
    """
    return uniforms * q_x.to(uniforms.dtype) < p_x.to(uniforms.dtype)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Unnormalised max(0, p - q), or p itself where nothing is left (p = q, up to rounding). [m, V] -> [m, V]

    In `sampling.real_dtype`: p is often one row, and its small differences from q are what is drawn from.
    """
    left = (p.to(real_dtype(p.device)) - q).clamp_min(0.0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)


def near_ties(scores: torch.Tensor, own: torch.Tensor, rounding: float) -> torch.Tensor:
    """Whether the runner-up lies within `rounding` * |best| of the best, at index `own` [m].

    [m, V] -> bool [m]; `scores` come back unchanged.
    """
    index = own[:, None]
    top = scores.gather(-1, index)
    # The winner is hidden for a moment: two reductions are far cheaper than topk, or than a mask over the vocabulary.
    scores.scatter_(-1, index, -torch.inf)
    runner_up = scores.amax(-1, keepdim=True)
    scores.scatter_(-1, index, top)
    return (runner_up >= top - rounding * top.abs())[:, 0]


def point_logits(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Scores of point masses. [m] -> float32 [m, V]"""
    scores = torch.full((len(ids), vocabulary), IMPOSSIBLE, device=ids.device)
    return scores.scatter_(1, ids[:, None], 0.0)


def _to_host(columns: list[torch.Tensor]) -> list[float]:
    """All columns as one list, in one copy."""
    # Ids travel as float32 beside the numbers: vocabularies are far below 2^24, so nothing is rounded.
    return (
        columns[0].tolist()
        if len(columns) == 1
        else torch.cat([column.to(torch.float32) for column in columns]).tolist()
    )


def _possible(token: float) -> int:
    """The id of a token that will be emitted. (Behind a refused token none may be possible, and none is needed.)"""
    if token < 0:
        raise ValueError(
            "no token is possible here: every score is -inf or NaN (processors that ban everything, say, or a model "
            "that overflowed)"
        )
    return int(token)


def _unpack(
    packed: list[float],
    proposal: Proposal,
    distributions: torch.Tensor | None,
    logits: torch.Tensor,
    scores: torch.Tensor,
    with_entropies: bool,
) -> Verdict:
    m, n, final = len(proposal), int(packed[0]), _possible(packed[1])
    columns = [packed[2 + i * m : 2 + (i + 1) * m] for i in range(6)]
    ids, loose, passes, divergences, distances, proposal_entropy = columns
    rest = packed[2 + 6 * m :]
    tokens = [int(token) for token in ids]
    proposal.tokens.host = tokens
    entropies, ties = (rest[: m + 1], rest[m + 1 :]) if with_entropies else ([], rest)
    emitted = slice(0, n + 1)
    return Verdict(
        n_accepted=n,
        tokens=[*tokens[:n], final],
        loosened=[bool(loose[i] and not passes[i]) for i in range(n)],
        drift=[distances[i] if loose[i] else 0.0 for i in range(n)] + [0.0],
        distributions=None if distributions is None else distributions[emitted],
        logits=logits[emitted],
        scores=scores[emitted],
        entropies=entropies,
        proposal_entropy=proposal_entropy,
        divergences=divergences,
        distances=distances,
        near_ties=[bool(tie) for tie in ties[emitted]],
    )
