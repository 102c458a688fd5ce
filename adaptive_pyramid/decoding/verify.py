"""One tier's verdict on a proposal: which tokens stand, what replaces the first that does not, and its law.

    rule     accepts x when                                    otherwise                          law of what it emits
    exact    u < p(x) / law(x)                                 a draw from norm(max(0, p - law))   p
    match    x is the verifier's own draw y ~ p                y                                  p
    fuzzy    Div(p, s) <= tau, or as `match`                   y                                  law where Div <= tau, else p
    relaxed  TV(p, law) <= tau (greedy: regret <= tau nats),   residual draw, or y if coupled     law where TV <= tau, else p
             or as `exact` (as `match` where noise is coupled)

p is the verifier's law, s the proposing tier's own distribution, law what x was really drawn from. Whether a stage
relaxes depends on the prefix alone, never on the token drawn (in sampling), so the law of what it emits is known
exactly, and a later `exact` test against that law is exact whatever the thresholds below. Sources: 2211.17192 and
2302.01318 (exact), 2502.20704 (fuzzy), 2510.12966 (thresholds per stage); `relaxed` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .divergence import IMPOSSIBLE, divergence, entropy, total_variation
from .drift import DriftBudget
from .sampling import Noise, Sampler, best, inverse_cdf
from .tokens import Tokens


@dataclass(slots=True)
class Proposal:
    """Tokens for a tier to verify.

    Args:
        tokens: m ids. proposer: the tier they come from. origins: per token, the tier that first drafted it.
        laws: float32 [m, V], laws[i] is what tokens[i] was drawn from; None = point masses on the tokens.
        logits: float32 [m, V], the proposing tier's own unprocessed scores; None where it has none, or no rule asks.
        entropy: float32 [m] on the proposer's device, or None.
    """

    tokens: Tokens
    proposer: int
    origins: list[int]
    laws: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Verdict:
    """What a verification emits: the accepted prefix and, before EOS, one token more. Host numbers, but for the tensors.

    Args:
        tokens: n_accepted + 1 ids. relaxed: accepted tokens that only tau let through.
        drift: per emitted token, the distance of its law from the verifier's.
        laws, logits, entropy: rows of the emitted tokens, as in Proposal (laws None = point masses).
        scores: the verifier's processed scores at the emitted tokens, float32.
        entropies, proposal_entropy, divergences, distances: by position of the proposal, for the statistics.
        near_ties: per emitted token, whether its runner-up lay within rounding (greedy, half precision).
    """

    n_accepted: int
    tokens: list[int]
    loosened: list[bool]
    drift: list[float]
    laws: torch.Tensor | None
    logits: torch.Tensor
    scores: torch.Tensor
    entropy: torch.Tensor
    entropies: list[float]
    proposal_entropy: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    near_ties: list[bool] = field(default_factory=list)

    def truncate(self, n: int) -> None:
        """Keep the first n of the accepted tokens and nothing behind them."""
        self.n_accepted = n
        for name in ("tokens", "loosened", "drift", "laws", "logits", "scores", "entropy", "near_ties"):
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
    rounding: float = 0.0   # relative rounding of the model's logits; above 0, near-ties are counted

    @property
    def compares_logits(self) -> bool:
        """Whether proposals must bring the proposing tier's own distribution."""
        return self.rule == "fuzzy"

    def verify(self, proposal: Proposal | None, logits: torch.Tensor, scores: torch.Tensor, tau: float, position: int,
               budget: DriftBudget | None = None) -> Verdict:
        """The verdict on `proposal` (m tokens, None = 0).

        Args:
            logits, scores: float32 [m + 1, V], unprocessed and processed, on the verifier's device.
            tau: threshold of this stage. position: index of the first proposed token, for keyed noise.
            budget: pays for relaxed acceptances; None = unlimited.

        One copy to the host at the end, whatever the rule.
        """
        m = 0 if proposal is None else len(proposal)
        device = logits.device
        x = torch.empty(0, dtype=torch.long, device=device) if proposal is None else proposal.tokens.tensor(device)
        decide = self._sampled if self.sampler.do_sample else self._greedy
        decision = decide(proposal, x, scores, position)
        loose = torch.zeros(m, dtype=torch.bool, device=device)
        if not m:   # a lookup abstains often, and a mid tier's round is short: nothing is computed for no positions
            return self._verdict(torch.zeros(1, dtype=torch.long, device=device), decision, loose, [], proposal, logits, scores)
        divergences = self._divergences(proposal, logits[:m], decision.distance)
        if tau > 0 and self.rule in ("fuzzy", "relaxed"):
            loose = divergences <= tau
            if decision.possible is not None:
                loose &= decision.possible
            if budget is not None:
                loose = budget.grant(loose, decision.distance)
        accepted = (loose | decision.passes).long().cumprod(0)
        proposed_entropy = torch.full((m,), torch.nan, device=device)
        if proposal.entropy is not None:
            proposed_entropy = proposal.entropy.to(device)
        columns = [x, loose, decision.passes, divergences, decision.distance, proposed_entropy]
        return self._verdict(accepted.sum()[None], decision, loose, columns, proposal, logits, scores)

    def _verdict(self, n: torch.Tensor, decision: _Decision, loose: torch.Tensor, columns: list[torch.Tensor],
                 proposal: Proposal | None, logits: torch.Tensor, scores: torch.Tensor) -> Verdict:
        """The first `n` (long [1]) are accepted; `columns` [m] are what the host is to know of every position."""
        entropies = entropy(logits)
        columns = [n, decision.replacement(n), *columns, entropies]
        if self.rounding and not self.sampler.do_sample:
            columns.append(near_ties(scores, decision.own, self.rounding))
        # Ids travel as float32 beside the numbers: vocabularies are far below 2^24, so nothing is rounded.
        packed = torch.cat([column.to(torch.float32) for column in columns]).tolist()
        return _unpack(packed, len(loose), proposal, decision.laws(loose), logits, scores, entropies)

    def _greedy(self, proposal: Proposal | None, x: torch.Tensor, scores: torch.Tensor, position: int) -> _Decision:
        m = len(x)
        own = best(scores)
        if not m:
            return _Decision(x, x, replacement=lambda n: own, laws=lambda loose: None, own=own)
        regret = (scores[:m].gather(-1, own[:m, None]) - scores[:m].gather(-1, x[:, None]))[:, 0]
        return _Decision(x == own[:m], regret, replacement=lambda n: own.gather(0, n), laws=lambda loose: None,
                         possible=regret.isfinite(), own=own)

    def _sampled(self, proposal: Proposal | None, x: torch.Tensor, scores: torch.Tensor, position: int) -> _Decision:
        m, vocabulary = len(x), scores.shape[-1]
        p = self.sampler.law(scores)
        if not m:
            token = self.noise.draw(p, position)
            return _Decision(x, x, replacement=lambda n: token, laws=lambda loose: p)
        p_x = p[:m].gather(-1, x[:, None])[:, 0]
        law = None if proposal is None or proposal.laws is None else proposal.laws.to(p.device)
        distance = 1.0 - p_x if law is None else total_variation(p[:m], law)
        possible = p_x > 0 if law is None else None

        def emitted_laws(loose: torch.Tensor) -> torch.Tensor:
            if self.rule in ("exact", "match"):
                return p
            drawn_from = torch.nn.functional.one_hot(x, vocabulary).to(p.dtype) if law is None else law
            return torch.cat([torch.where(loose[:, None], drawn_from, p[:m]), p[m:]])

        if self.rule == "match" or self.rule == "fuzzy" or self.noise.coupled:
            own = self.noise.draw(p, position)
            return _Decision(x == own[:m], distance, replacement=lambda n: own.gather(0, n), laws=emitted_laws, possible=possible)

        uniforms = self.noise.uniform(m + 1, p.device)
        law_x = torch.ones_like(p_x) if law is None else law.gather(-1, x[:, None])[:, 0]
        passes = accepts(p_x, law_x, uniforms[:m])

        def residual_draw(n: torch.Tensor) -> torch.Tensor:
            row = p.index_select(0, n)
            i = n.clamp_max(m - 1)
            point = torch.nn.functional.one_hot(x.index_select(0, i), vocabulary).to(p.dtype)
            below = point if law is None else law.index_select(0, i)
            row = torch.where(n < m, residual(row, below), row)
            return inverse_cdf(row, uniforms[m:])

        return _Decision(passes, distance, replacement=residual_draw, laws=emitted_laws, possible=possible)

    def _divergences(self, proposal: Proposal | None, logits: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        if self.rule != "fuzzy" or proposal is None or not len(proposal):
            return distance
        theirs = proposal.logits
        if theirs is None:
            # A lookup's own distribution is the point mass on what it found.
            theirs = point_logits(proposal.tokens.tensor(logits.device), logits.shape[-1])
        return divergence(self.divergence_name)(logits, theirs.to(logits.device))


@dataclass(slots=True)
class _Decision:
    """passes: bool [m], the rule at tau = 0. distance: float32 [m]. replacement(n: long [1]) -> long [1], the
    token after n accepted ones. laws(loose) -> float32 [m + 1, V] or None (point masses).

    possible: bool [m], which tokens tau may let through. A lookup knows nothing of banned words, of min_new_tokens or of
    top_k, and no threshold may let it break them. A model's own draw obeys the same processors: None, for there a condition
    on the token drawn would change the law. own: long [m + 1], the verifier's own choices (greedy)."""

    passes: torch.Tensor
    distance: torch.Tensor
    replacement: Callable[[torch.Tensor], torch.Tensor]
    laws: Callable[[torch.Tensor], torch.Tensor | None]
    possible: torch.Tensor | None = None
    own: torch.Tensor | None = None


def accepts(p_x: torch.Tensor, law_x: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The exact test u < p(x) / law(x), without the division. All [m] -> bool [m]."""
    return uniforms * law_x < p_x


def residual(p: torch.Tensor, law: torch.Tensor) -> torch.Tensor:
    """Unnormalised max(0, p - law), or p itself where nothing is left (equal laws, up to rounding). [m, V] -> [m, V]"""
    left = (p - law).clamp_min(0.0)
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


def _unpack(packed: list[float], m: int, proposal: Proposal | None, laws: torch.Tensor | None, logits: torch.Tensor,
            scores: torch.Tensor, entropies: torch.Tensor) -> Verdict:
    n, final = int(packed[0]), int(packed[1])
    if final < 0:   # (behind a refused token no token may be possible, and none is needed)
        raise ValueError("no token is possible here: every score is -inf or NaN (processors that ban everything, say, or a model "
                         "that overflowed)")
    columns = [packed[2 + i * m : 2 + (i + 1) * m] for i in range(6)]
    ids, loose, passes, divergences, distances, proposal_entropy = columns
    rest = packed[2 + 6 * m :]
    tokens = [int(token) for token in ids]
    if proposal is not None:
        proposal.tokens.host = tokens
    emitted = slice(0, n + 1)
    return Verdict(
        n_accepted=n,
        tokens=[*tokens[:n], final],
        loosened=[bool(loose[i] and not passes[i]) for i in range(n)],
        drift=[distances[i] if loose[i] else 0.0 for i in range(n)] + [0.0],
        laws=None if laws is None else laws[emitted],
        logits=logits[emitted],
        scores=scores[emitted],
        entropy=entropies[emitted],
        entropies=rest[: m + 1],
        proposal_entropy=proposal_entropy,
        divergences=divergences,
        distances=distances,
        near_ties=[bool(tie) for tie in rest[m + 1 :][emitted]],
    )
