"""The loop: blocks of one target verification each, with another config for every block if the caller likes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from ..config import PyramidConfig, Route, StageConfig, route_label
from ..errors import shown
from ..request import GenerationRequest
from ..stats import SHADOW_LENGTH, BlockStats, Shadow
from ..wrappers import unwrapped
from .drafters import ForeignDrafter, ModelDrafter, PromptLookup, PromptLookupDrafter
from .drift import DriftBudget
from .method import Method, resolve
from .sampling import KeyedNoise, PrivateNoise, Sampler
from .scorer import Scorer, output_width
from .tiers import FirstOf, Proposer, Run, Stage
from .tokens import TokenSequence
from .verify import Verdict, Verifier
from .weights import outdated
from .widths import measured


@dataclass(slots=True)
class Block:
    """What one step produced.

    Args:
        tokens: new ids, cut at the first stop. stats: the block's numbers.
        scores, logits: the target's processed and unprocessed scores at those tokens, float32 [n, V].
    """

    tokens: list[int]
    stats: BlockStats
    scores: torch.Tensor
    logits: torch.Tensor


class PyramidDecoder:
    """Tiers, their caches, and how to step them. Ignorant of control.

    Args:
        tiers: from draft to target: causal LMs (compiled and PEFT-wrapped ones too), `PromptLookup()`, or Hugging Face
            candidate generators (those without a model of their own can only stand at the bottom of a route). The last
            must be a model.

    Raises:
        TypeError: something else among the tiers. ValueError: a model that cannot be decoded with (see `Scorer`).
    """

    def __init__(self, tiers: Sequence[Any]) -> None:
        tiers = [unwrapped(tier) for tier in tiers]
        if not tiers or not isinstance(tiers[-1], PreTrainedModel):
            last = type(tiers[-1]).__name__ if tiers else "no tiers"
            raise TypeError(f"the last tier must be a transformers model (the target), got {last}")
        self.tiers = tiers
        self.target = len(tiers) - 1
        target_vocabulary = output_width(tiers[-1])
        self.scorers: dict[int, Scorer] = {}
        self.lookups: dict[int, PromptLookupDrafter] = {}
        self._drafters: dict[int, Proposer] = {}
        # A tier must not propose an id that a tier above it cannot embed; masking the distribution (not dropping the token)
        # keeps proposals unbiased.
        usable = target_vocabulary
        for tier in range(self.target, -1, -1):
            member = tiers[tier]
            if isinstance(member, PreTrainedModel):
                scorer = Scorer(member, tier, target_vocabulary, usable, is_target=tier == self.target)
                usable = min(usable, scorer.embeddings)
                self.scorers[tier] = scorer
                self._drafters[tier] = ModelDrafter(scorer)
            elif isinstance(member, PromptLookup):
                self._drafters[tier] = self.lookups[tier] = PromptLookupDrafter(member, tier, usable)
            elif isinstance(member, CandidateGenerator):
                self._drafters[tier] = ForeignDrafter(member, tier, usable)
            else:
                raise TypeError(
                    f"tier {tier} must be a transformers model, PromptLookup() or a CandidateGenerator, "
                    f"got {type(member).__name__}"
                )
        self.vocab_size = target_vocabulary
        self.width_difference = measured(self.scorers[self.target])
        if self.width_difference.significant:
            self.scorers[self.target].reads_prompt_apart = True
            warnings.warn(
                f"tier {self.target} ({type(tiers[-1]).__name__}), the target: {self.width_difference}; where two tokens "
                "are this close, the text can differ from that of one-token decoding (counted as near-ties in greedy "
                "decoding)",
                UserWarning,
                stacklevel=3,
            )

    def clear_caches(self) -> None:
        """Free the memory of every cache; the next call starts cold."""
        for scorer in self.scorers.values():
            scorer.clear()

    def check(self, config: PyramidConfig) -> PyramidConfig:
        """`config` if this decoder can run it, else TypeError or ValueError."""
        if not isinstance(config, PyramidConfig):
            raise TypeError(f"config must be a PyramidConfig, got {shown(config)}")
        if config.n_tiers != len(self.tiers):
            raise ValueError(f"config is for {config.n_tiers} tiers, this pyramid has {len(self.tiers)}")
        for tier in config.tiers:
            if tier not in self.scorers and tier not in _bottom(config.route):
                raise ValueError(
                    f"route {route_label(config.route)}: tier {tier} has no model, so it can only stand at the bottom"
                )
        return config

    def start(
        self,
        request: GenerationRequest,
        method: str | Method = "pyramid",
        drift_budget: float | None = None,
        stop_text: Callable[[Sequence[int]], bool] | None = None,
    ) -> Decoding:
        """A decoding of one prompt, to be stepped by hand: `while not d.finished: block = d.step(config)`.

        `stop_text` is called with the new ids after every token and says whether the text ends there.
        """
        return Decoding(self, request, method, drift_budget, stop_text)

    def blocks(
        self,
        request: GenerationRequest,
        config: PyramidConfig,
        method: str | Method = "pyramid",
        drift_budget: float | None = None,
    ) -> Iterator[Block]:
        """Yield blocks until a stop rule ends the text. `send(config)` changes the config from the next block on."""
        decoding = self.start(request, method, drift_budget)
        while not decoding.finished:
            sent = yield decoding.step(config)
            config = config if sent is None else sent


class Decoding:
    """One prompt being continued.

    Attributes:
        sequence: prompt and output. finish_reason: None, "length", "eos", "stop_string" or "stopping_criteria".
        notes: sentences on tiers that left the route, and why. reused: prompt tokens the target has cached already.
    """

    def __init__(
        self,
        decoder: PyramidDecoder,
        request: GenerationRequest,
        method: str | Method,
        drift_budget: float | None,
        stop_text: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self.decoder = decoder
        self.request = request
        self.method = resolve(method, seeded=request.seeded and request.do_sample, drift_budget=drift_budget)
        self.sequence = TokenSequence(request.prompt_ids)
        self.finish_reason: str | None = "length" if request.max_new_tokens == 0 else None
        self.notes: list[str] = []
        self._stop_text = stop_text
        self._lost: dict[int, str] = {}
        noise = None
        if request.do_sample:
            noise = KeyedNoise(request.seed, decoder.vocab_size) if self.method.coupled else PrivateNoise(request.seed)
        self.drift_budget = None if self.method.lossless else drift_budget
        budget = None if self.drift_budget is None else DriftBudget(self.drift_budget)
        # The target's device is where `generate` builds processors.
        sampler = Sampler(
            request.do_sample, request.processors, request.padding, decoder.scorers[decoder.target].device
        )
        self._run = Run(self.sequence, sampler, noise, request.eos, budget)
        self._chains: dict[PyramidConfig, Stage] = {}
        if decoder.width_difference.significant:
            self.notes.append(f"the target: {decoder.width_difference}")
        for tier, scorer in decoder.scorers.items():
            scorer.forget_old_weights()
            if outdated(scorer.model):
                self.notes.append(
                    f"tier {tier} was derived from a model whose weights have changed since, and keeps the old ones; "
                    "derive it anew to follow them"
                )
        self.reused = decoder.scorers[decoder.target].reusable(self.sequence)
        for scorer in decoder.scorers.values():
            scorer.drain()

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def new_ids(self) -> list[int]:
        return self.sequence.ids[self.sequence.prompt_length :]

    def step(self, config: PyramidConfig) -> Block:
        """One block under `config`.

        Raises:
            ValueError: a config for another number of tiers, or a route with a model-less tier above its bottom.
        """
        if self.finished:
            raise RuntimeError(f"this decoding is finished ({self.finish_reason})")
        started = time.perf_counter()
        config = self._readable(self.decoder.check(config))
        position = len(self.new_ids)
        context = len(self.sequence)
        run = self._run
        found = self._overlooked(config)
        with torch.inference_mode():
            verdict, origins = self._chain(config).round(run, self.request.max_new_tokens - position, run.budget)
        tokens = self._emit(verdict)
        if run.budget is not None:
            run.budget.book(verdict.drift[: len(tokens)])
        verifications, run.verifications = run.verifications, []
        stats = BlockStats(
            config=config,
            position=position,
            context=context,
            tokens=len(tokens),
            seconds=time.perf_counter() - started,
            verifications=tuple(verifications),
            forwards=tuple(f for scorer in self.decoder.scorers.values() for f in scorer.drain()),
            origins=tuple(origins[: len(tokens)]),
            drift=tuple(verdict.drift[: len(tokens)]),
            budget_left=None if run.budget is None else run.budget.balance,
            copies=len(verifications),
            near_ties=sum(verdict.near_ties[: len(tokens)]),
            shadows=tuple(Shadow.of(tier, ids, tokens) for tier, ids in found),
        )
        return Block(tokens, stats, verdict.scores[: len(tokens)], verdict.logits[: len(tokens)])

    def _overlooked(self, config: PyramidConfig) -> list[tuple[int, list[int]]]:
        """(tier, ids it finds) for every lookup that the target does not ask under `config`."""
        asked = config.route[-2] if len(config.route) > 1 else ()
        return [
            (tier, lookup.find(self.sequence, SHADOW_LENGTH))
            for tier, lookup in self.decoder.lookups.items()
            if tier != asked and not (isinstance(asked, tuple) and tier in asked)
        ]

    def _emit(self, verdict: Verdict) -> list[int]:
        """Append the verdict's tokens up to the first stop."""
        request = self.request
        if self._stop_text is None and not request.criteria:
            tokens = verdict.tokens
            self.sequence.accept(tokens)
        else:
            tokens = []
            for i, token in enumerate(verdict.tokens):
                tokens.append(token)
                self.sequence.accept([token])
                if self._stop_text is not None and self._stop_text(self.new_ids):
                    self.finish_reason = "stop_string"
                elif request.meets_criteria(self.sequence.ids, verdict.scores[i : i + 1]):
                    self.finish_reason = "stopping_criteria"
                if self.finish_reason is not None:
                    break
        if tokens[-1] in request.eos:
            self.finish_reason = "eos"
        elif self.finish_reason is None and len(self.new_ids) >= request.max_new_tokens:
            self.finish_reason = "length"
        return tokens

    def _readable(self, config: PyramidConfig) -> PyramidConfig:
        """`config` without the tiers that can no longer read this text, or of which the target can verify nothing."""
        rope, length = self.decoder.scorers[self.decoder.target].rope, len(self.sequence)
        if rope is not None and rope.at_every_length and length > rope.length and not self._lost:
            self._lost = dict.fromkeys(range(self.decoder.target), "nothing can be drafted for the target")
            self.notes.append(
                f"the target decodes alone from token {len(self.new_ids)}: beyond {rope.length} tokens its rotary "
                "frequencies change with every token"
            )
        for tier in config.tiers[:-1]:
            scorer = self.decoder.scorers.get(tier)
            if tier not in self._lost and scorer is not None and scorer.room(self.sequence) < 0:
                limit = scorer.max_context
                reason = (
                    f"its context of {limit} tokens is full"
                    if limit is not None and len(self.sequence) > limit
                    else f"the text holds an id that its vocabulary of {scorer.embeddings} lacks"
                )
                self._lost[tier] = reason
                self.notes.append(f"tier {tier} left the route at token {len(self.new_ids)}: {reason}")
        return config if not self._lost else config.with_route(_without(config.route, self._lost))

    def _chain(self, config: PyramidConfig) -> Stage:
        """The recursion for `config`, built once per config."""
        chain = self._chains.get(config)
        if chain is None:
            below = self._bottom_proposer(config) if len(config.route) > 1 else None
            for tier in config.route[1:] or config.route:
                scorer = self.decoder.scorers[tier]
                is_target = tier == self.decoder.target
                rounding = self._rounding(scorer.model.dtype) if is_target else 0.0
                verifier = Verifier(
                    self.method.rule(is_target), self.method.divergence, self._run.sampler, self._run.noise, rounding
                )
                # A pyramid of one tier has no stage to configure, and nothing below that could use it.
                below = Stage(scorer, below, config.stage(tier) if tier else StageConfig(1), verifier)
            chain = self._chains[config] = below
        return chain

    def _rounding(self, dtype: torch.dtype) -> float:
        """How close a runner-up counts as a near-tie, relative to the best logit; 0 where that is not worth counting."""
        spacing = torch.finfo(dtype).eps if dtype in (torch.bfloat16, torch.float16) else 0.0
        widths = self.decoder.width_difference
        return max(spacing, widths.proposal) if widths.significant else spacing

    def _bottom_proposer(self, config: PyramidConfig) -> Proposer:
        proposers = [self.decoder._drafters[tier] for tier in _bottom(config.route)]
        return proposers[0] if len(proposers) == 1 else FirstOf(proposers)


def _bottom(route: Route) -> tuple[int, ...]:
    return route[0] if isinstance(route[0], tuple) else (route[0],)


def _without(route: Route, lost: dict[int, str]) -> Route:
    bottom = tuple(tier for tier in _bottom(route) if tier not in lost)
    rest = tuple(tier for tier in route[1:] if tier not in lost)
    if len(bottom) > 1:
        return (bottom, *rest)
    return (*bottom, *rest)
