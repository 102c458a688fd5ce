"""Distances between two next-token distributions, by name; all take logits [m, V] and return float32 [m].

p is the verifier's (target's) distribution, q the proposer's. `js`, `kl`, `kl_rev` in nats, `logit_gap` in logits,
`tv` and `topk_*` are shares in [0, 1]. The papers' presets compare raw logits at temperature 1, as fuzzy speculative
decoding does (arXiv 2502.20704); that PyramidSD (arXiv 2510.12966) means the same is our reading of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..errors import unknown_name

# The logit of probability 0: as good as -inf, but finite, so that 0 * logit stays 0 in entropies.
IMPOSSIBLE = torch.finfo(torch.float32).min


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """H(p) in nats, logits [m, V] -> [m]; NaN in a row with -inf logits."""
    # log Z - E[logit], with log Z read off the most likely entry: one softmax, and no second pass over exponentials.
    probabilities = torch.softmax(logits, dim=-1)
    log_z = logits.amax(-1) - probabilities.amax(-1).log()
    return log_z - probabilities.mul_(logits).sum(-1)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """TV of two distributions (probabilities) [m, V] -> [m]."""
    return 0.5 * (p - q).abs_().sum(-1)


def tv(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """Total variation."""
    return total_variation(torch.softmax(p_logits, -1), torch.softmax(q_logits, -1))


def kl(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """KL(p || q): target from draft."""
    log_p, log_q = torch.log_softmax(p_logits, -1), torch.log_softmax(q_logits, -1)
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p))
    return terms.sum(-1).clamp_min(0.0)


def kl_rev(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """KL(q || p): draft from target."""
    return kl(q_logits, p_logits)


def js(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence, at most log 2."""
    # H of the middle less the mean of both entropies; 0 log 0 = 0 through the clamp.
    middle = 0.5 * (torch.softmax(p_logits, -1) + torch.softmax(q_logits, -1))
    entropy_middle = -(middle.clamp_min(torch.finfo(torch.float32).tiny).log_() * middle).sum(-1)
    return (entropy_middle - 0.5 * (entropy(p_logits) + entropy(q_logits))).clamp_min(0.0)


def logit_gap(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """p's best logit less p's logit of q's favourite: 0 where both have the same favourite."""
    favourite = q_logits.argmax(-1, keepdim=True)
    return p_logits.max(-1).values - p_logits.gather(-1, favourite)[:, 0]


def _topk_mismatch(k: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def mismatch(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
        ours, theirs = p_logits.topk(k, -1).indices, q_logits.topk(k, -1).indices
        shared = (ours[:, :, None] == theirs[:, None, :]).any(-1).float().mean(-1)
        return 1.0 - shared

    mismatch.__doc__ = f"Share of p's {k} most likely tokens that are not among q's."
    return mismatch


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "js": js,
    "tv": tv,
    "kl": kl,
    "kl_rev": kl_rev,
    "logit_gap": logit_gap,
    "topk_1": _topk_mismatch(1),
    "topk_5": _topk_mismatch(5),
    "topk_20": _topk_mismatch(20),
}


def divergence(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The function by name; ValueError with the nearest name otherwise."""
    if name not in DIVERGENCES:
        raise ValueError(unknown_name("divergence", name, DIVERGENCES))
    return DIVERGENCES[name]
