"""What can sit at the bottom of a route: a model, an n-gram lookup, or a foreign candidate generator."""

from __future__ import annotations

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..errors import check_int
from .divergence import entropy
from .sampling import best
from .scorer import Scorer
from .tiers import Run
from .tokens import Tokens, TokenSequence
from .verify import Proposal


class ModelDrafter:
    """Drafts token by token with a model. On a device the loop never waits for the host."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.tier = scorer.tier

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        n = min(n, cap, self.scorer.room(run.sequence) + 1)
        if n < 1:
            return None
        tokens = Tokens(device=self.scorer.device)
        distributions, raw = [], []
        reads_host = self.scorer.device.type == "cpu" or stop is not None
        for i in range(n):
            logits = self.scorer.logits(run.sequence, tokens, last=1)
            scores = run.sampler.scores(logits, run.sequence, tokens)
            if run.sampler.do_sample:
                distribution = run.sampler.distributions(scores)
                distributions.append(distribution)
                token = run.noise.draw(distribution, len(run.sequence) + i).clamp_min(
                    0
                )  # where none is possible, 0 will be refused
            else:
                token = best(scores)
            tokens.append(token)
            raw.append(logits)
            # Stopping may depend on a drawn token only because that token is kept: dropping it would bias the output.
            if reads_host and (int(token) in run.eos or (stop is not None and float(entropy(logits)) > stop)):
                break
        drafted = torch.cat(raw)
        return Proposal(
            tokens,
            self.tier,
            [self.tier] * len(tokens),
            distributions=torch.cat(distributions) if distributions else None,
            logits=drafted if with_logits else None,
            entropy=entropy(drafted),
        )


class PromptLookup:
    """Draws continuations from the text itself: the last n-gram's latest earlier occurrence, longest n first.

    Prompt-lookup decoding, with prompt and output indexed as they grow: amortised constant time per token. Proposals
    have point-mass distributions. Abstains when no n-gram of at least `min_ngram` tokens occurred before.

    Args:
        max_ngram: longest match tried. min_ngram: shortest match trusted.
    """

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        check_int("PromptLookup.min_ngram", min_ngram, 1)
        check_int("PromptLookup.max_ngram", max_ngram, min_ngram)
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram

    def __repr__(self) -> str:
        return f"PromptLookup(max_ngram={self.max_ngram}, min_ngram={self.min_ngram})"


class PromptLookupDrafter:
    """A PromptLookup at work on one text at a time."""

    def __init__(self, lookup: PromptLookup, tier: int, usable_ids: int) -> None:
        self.lookup = lookup
        self.tier = tier
        self.usable_ids = usable_ids
        self._text: TokenSequence | None = None
        self._indexed = 0
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> where its latest occurrence goes on

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        found = self.find(run.sequence, min(n, cap))
        return Proposal(Tokens(found), self.tier, [self.tier] * len(found)) if found else None

    def find(self, sequence: TokenSequence, n: int) -> list[int]:
        """Up to n ids that followed the latest earlier occurrence of the longest matching suffix; [] if none did."""
        self._index(sequence)
        ids = sequence.ids
        for size in range(min(self.lookup.max_ngram, len(ids)), self.lookup.min_ngram - 1, -1):
            start = self._after.get(tuple(ids[-size:]))
            if start is not None:
                return self._copied(ids, start, n)
        return []

    def _copied(self, ids: list[int], start: int, n: int) -> list[int]:
        found: list[int] = []
        for i in range(start, start + n):
            # Past the end of the text the copy goes on with itself, so a repeating pattern is continued in full.
            token = ids[i] if i < len(ids) else found[i - len(ids)]
            if token >= self.usable_ids:
                break
            found.append(token)
        return found

    def _index(self, sequence: TokenSequence) -> None:
        if self._text is not sequence:
            self._text, self._indexed, self._after = sequence, 0, {}
        ids = sequence.ids
        # An n-gram enters once a token stands behind it, so the end of the text never matches itself.
        for end in range(max(self._indexed, 1), sequence.verified):
            for size in range(self.lookup.min_ngram, min(self.lookup.max_ngram, end) + 1):
                self._after[tuple(ids[end - size : end])] = end
        self._indexed = sequence.verified


class ForeignDrafter:
    """Any Hugging Face `CandidateGenerator` that works from ids alone.

    Its tokens count as point masses. That is exact even if it samples: given the tokens, whatever they were drawn
    from, the test leaves the verifier's distribution.

    Raises:
        ValueError: a generator with `requires_model_outputs=True`; it needs the target's hidden states.
    """

    def __init__(self, generator: CandidateGenerator, tier: int, usable_ids: int) -> None:
        if generator.requires_model_outputs:
            raise ValueError(
                f"tier {tier}: {type(generator).__name__} has requires_model_outputs=True: it drafts from the "
                "target's hidden states, which tiers do not pass on; expected one that works from ids alone"
            )
        self.generator = generator
        self.tier = tier
        self.usable_ids = usable_ids

    def propose(self, run: Run, n: int, cap: int, stop: float | None, with_logits: bool) -> Proposal | None:
        ids = torch.tensor([run.sequence.ids], dtype=torch.long)
        candidates, _ = self.generator.get_candidates(ids)
        found = candidates[0, len(run.sequence) :].tolist()[: min(n, cap)]
        for i, token in enumerate(found):
            if token >= self.usable_ids:
                found = found[:i]
                break
        return Proposal(Tokens(found), self.tier, [self.tier] * len(found)) if found else None
