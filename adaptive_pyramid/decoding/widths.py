"""Whether a model's logits depend on how many tokens a forward reads, by more than rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .scorer import Scorer
from .tokens import Tokens, TokenSequence

WIDE, NARROW = 40, 8  # tokens in a forward over a prompt, over a proposal (kernels made for few rows change between)


@dataclass(frozen=True, slots=True)
class WidthDifference:
    """Largest differences of logits after the same prefix, as shares of the best logit.

    Args:
        prompt: between forwards over `WIDE` and over `NARROW` tokens. proposal: between `NARROW` tokens and one.
        limit: what rounding explains in the model's dtype.
    """

    prompt: float = 0.0
    proposal: float = 0.0
    limit: float = 1.0

    @property
    def largest(self) -> float:
        return max(self.prompt, self.proposal)

    @property
    def significant(self) -> bool:
        return self.largest > self.limit

    def __str__(self) -> str:
        return (
            f"its logits differ with the number of tokens that a forward reads, by up to {self.largest:.2g} of the best "
            f"logit ({self.prompt:.2g} between {WIDE} tokens and {NARROW}, {self.proposal:.2g} between {NARROW} and 1)"
        )


def measured(scorer: Scorer) -> WidthDifference:
    """From three forwards over some forty tokens. The scorer's cache is empty afterwards.

    Offloaded models (every forward loads all weights) and models in training mode (dropout) are not measured.
    """
    model = scorer.model
    if model.training or any(weight.is_meta for weight in model.parameters()):
        return WidthDifference()
    width = min(WIDE, scorer.max_context or WIDE)
    narrow = min(NARROW, width)
    text = TokenSequence([(7919 * i + 11) % min(scorer.embeddings, scorer.vocab_size) for i in range(width)])
    with torch.inference_mode():
        # The shorter forwards crop the cache of the first: the prefix before them stays the same.
        wide, rows, one = (scorer.logits(text, Tokens(), last) for last in (narrow, narrow, 1))
    difference = WidthDifference(_relative(wide, rows), _relative(rows[-1:], one), _limit(model.dtype))
    scorer.clear()
    scorer.drain()
    return difference


def _relative(some: torch.Tensor, others: torch.Tensor) -> float:
    """max |a - b| / |max b| over the rows; 0 where all are equal. [n, V], [n, V]"""
    gap = torch.where(some == others, 0.0, some - others).abs().amax(-1)
    share = gap / others.amax(-1).abs().clamp_min(torch.finfo(torch.float32).tiny)
    return float(share.nan_to_num(0.0, posinf=1.0).amax())


def _limit(dtype: torch.dtype) -> float:
    """Half precision: deep models in bfloat16 were seen to differ by 2 of its spacings. Else: a thousand roundings or more."""
    return 8 * torch.finfo(dtype).eps if dtype in (torch.bfloat16, torch.float16) else 1e-3
