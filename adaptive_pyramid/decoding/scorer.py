"""One model and its KV cache. The only file that knows caches.

A scorer is given the whole text every time. It keeps the longest prefix in common with what it has cached, crops the
rest and feeds the remainder; nobody else says crop, commit or rollback, so any number of caches needs no coordination.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import torch
from transformers import GenerationMixin, PreTrainedModel

from ..stats import Forward
from ..wrappers import execution_device, unwrapped
from .caches import check_croppable, croppable_cache
from .divergence import IMPOSSIBLE
from .rope import length_dependence
from .tokens import Tokens, TokenSequence
from .weights import WeightWatch

_ANY_LENGTH = 1 << 30
_NARROW = 32  # rows up to which quantised linear layers take their kernel for decoding


class Scorer:
    """Logits of one tier for any text, at the cost of the part it has not seen.

    Args:
        model: a decoder-only causal LM. tier: its index, for the statistics.
        vocab_size: width of the returned logits (the target's): ids the model lacks get probability 0.
        usable_ids: ids from here on get probability 0 too, because a tier above could not embed them.
        is_target: a target reads whatever `generate` would; other tiers leave the route at their limits.

    Raises:
        ValueError: encoder-decoder models, and models whose cache cannot be rolled back (recurrent, linear attention).
    """

    def __init__(self, model: PreTrainedModel, tier: int, vocab_size: int, usable_ids: int, is_target: bool) -> None:
        check_croppable(model, tier)
        self.model = model
        self.tier = tier
        self.vocab_size = vocab_size
        self.usable_ids = usable_ids
        self.device = execution_device(model)
        self.embeddings: int = model.get_input_embeddings().num_embeddings  # type: ignore[assignment]
        self.is_target = is_target
        self.max_context = context_limit(model, only_hard=is_target)
        self.rope = length_dependence(model)
        self.log: list[Forward] = []
        self.reads_prompt_apart = False  # in a forward of its own, as `generate` does, whatever is drafted behind it
        self._weights = WeightWatch(model)
        self._timer = _CudaTimer() if self.device.type == "cuda" else _HostTimer()
        parameters = inspect.signature(model.forward).parameters
        if not {"cache", "past_key_values"} & parameters.keys():
            raise ValueError(
                f"tier {tier}: {type(model).__name__} takes no key/value cache; expected a model that `generate` can run with one"
            )
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"  # newer and older transformers
        self._keeps_few_logits = "logits_to_keep" in parameters
        # `generate` counts positions from 0; left to themselves, models of the RoBERTa family begin behind their padding id.
        self._takes_positions = "position_ids" in parameters and _counts_positions(model)
        self.clear()
        if not getattr(model, "_supports_attention_backend", False):
            self._check_rollback()

    @classmethod
    def alone(cls, model: PreTrainedModel) -> Scorer:
        """A scorer of one model outside a pyramid."""
        model = unwrapped(model)
        width = output_width(model)
        return cls(model, 0, width, width, is_target=True)

    def clear(self) -> None:
        """Forget the cached text and free its memory."""
        self._cache = croppable_cache(self.model.config)
        self._ids: list[int] = []  # cached ids known on the host
        self._tail: Tokens | None = None  # drafted ids cached behind them, perhaps not yet known on the host
        self._tail_fed = 0
        self._text: TokenSequence | None = None  # whose verified ids `_agreed` leading cached ids are known to equal
        self._agreed = 0
        self._read: TokenSequence | None = None  # the text that was read last
        self._first = 0  # leading cached entries made under the first set of length-dependent rotary frequencies

    def forget_old_weights(self) -> None:
        """Forget the cached text if the model's weights have changed since the last call."""
        if self._weights.changed():
            self.clear()
            self._weights.renew()

    def _check_rollback(self) -> None:
        """Try on four tokens what decoding will do: transformers' older models handle their caches each in its own way.

        Raises:
            ValueError: the model cannot go on from a cropped cache, or gives other logits then.
        """
        ids = [(7 + i) % self.embeddings for i in range(4)]
        text = TokenSequence([ids[0], ids[1], ids[3], ids[2]])
        problem, cause = "", None
        try:
            with torch.inference_mode():
                self.logits(TokenSequence(ids[:3]), Tokens(), 1)
                warm = self.logits(text, Tokens(), 2)
                held = self._cache.get_seq_length()
                self.clear()
                cold = self.logits(text, Tokens(), 2)
        except Exception as error:
            problem, cause = f"{type(error).__name__}: {error}".splitlines()[0], error
        else:
            if held != len(text):
                problem = f"its cache holds {held} entries for {len(text)} tokens"
            elif (warm - cold).abs().max() > 0.05 * (1 + cold.std()):
                problem = "its logits change"
        self.clear()
        self.drain()
        if problem:
            raise ValueError(
                f"tier {self.tier}: {type(self.model).__name__} cannot go on from a cropped key/value cache ({problem}); "
                "expected a model whose cache can be rolled back when a draft is refused"
            ) from cause

    def room(self, sequence: TokenSequence) -> int:
        """How many tokens behind `sequence` the model can still read; negative if it cannot read `sequence` itself."""
        if not self.is_target:
            if sequence.largest_verified >= self.embeddings:
                return -1
            if any(token >= self.embeddings for token in sequence.ids[sequence.verified :]):
                return -1
        room = _ANY_LENGTH if self.max_context is None else self.max_context - len(sequence)
        if self.rope is not None and self.is_target:
            exact = self.rope.room(len(sequence))
            room = room if exact is None else min(room, exact)
        return room

    def reusable(self, sequence: TokenSequence) -> int:
        """How many leading tokens of a new text need no forward, because they are cached."""
        return self._keepable(sequence, len(sequence), self._in_common(sequence, Tokens()))

    def logits(self, sequence: TokenSequence, tail: Tokens, last: int) -> torch.Tensor:
        """Unprocessed logits after each of the `last` last tokens of `sequence` followed by `tail`.

        Returns:
            float32 [last, V] on the model's device; row -1 predicts the token after the whole text.
        """
        total = len(sequence) + len(tail)
        keep = min(self._keepable(sequence, total, self._in_common(sequence, tail)), total - last)
        cached = len(self._ids) + self._tail_fed
        rows: list[torch.Tensor] = []
        try:
            if keep < cached:
                self._cache.crop(keep - cached)
            new_ids = self._remember(sequence, tail, keep)
            start = keep
            for end in self._forward_ends(sequence, keep, total):
                needed = max(0, end - max(start, total - last))
                logits = self._forward(new_ids[start - keep : end - keep], needed, start)
                rows += [logits] if needed else []
                start = end
        except BaseException:
            # Ctrl-C or too little memory: some layers may hold the new entries and others not, so none can be trusted.
            self.clear()
            raise
        self._read = sequence
        self._first = total if self.rope is not None and total <= self.rope.length else min(self._first, keep)
        return self._fitted(rows[0] if len(rows) == 1 else torch.cat(rows))

    def _forward_ends(self, sequence: TokenSequence, keep: int, total: int) -> list[int]:
        """Where the forwards over the ids from `keep` to `total` end."""
        prompt = sequence.prompt_length
        if not self.reads_prompt_apart or total <= prompt:
            return [total]
        narrow = range(max(keep, prompt) + _NARROW, total, _NARROW)
        return [prompt, *narrow, total] if keep < prompt else [*narrow, total]

    def _forward(self, ids: torch.Tensor, needed: int, context: int) -> torch.Tensor:
        """Logits after the last `needed` of `ids`, float32 [max(1, needed), V]."""
        width, kept = len(ids), max(1, needed)
        positions = torch.arange(context, context + width, device=self.device)[None]
        self._timer.start()
        output = self.model(
            input_ids=ids[None],
            use_cache=True,
            **{self._cache_keyword: self._cache},
            **({"logits_to_keep": kept} if self._keeps_few_logits else {}),
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        logits = output.logits[0, -kept:].to(torch.float32)
        self._timer.stop(lambda seconds: self.log.append(Forward(self.tier, width, kept, context, seconds)))
        return logits

    def along(self, ids: list[int], start: int, width: int = 16) -> torch.Tensor:
        """Logits before each of `ids[start:]`, float32 [len(ids) - start, V], start >= 1.

        In forwards as narrow as decoding's own: a wide one may round otherwise, or take another kernel.
        """
        text, rows = TokenSequence(ids[:start]), []
        for begin in range(start, len(ids), width):
            chunk = ids[begin : begin + width]
            rows.append(self.logits(text, Tokens(chunk[:-1], self.device), last=len(chunk)))
            text.accept(chunk)
        return torch.cat(rows)

    def drain(self) -> list[Forward]:
        """Forward passes timed since the last call. On CUDA the newest may be missing: they are read one block late."""
        self._timer.collect()
        forwards, self.log = self.log, []
        return forwards

    def _fitted(self, logits: torch.Tensor) -> torch.Tensor:
        width = logits.shape[-1]
        if width > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        elif width < self.vocab_size:
            logits = torch.nn.functional.pad(logits, (0, self.vocab_size - width), value=IMPOSSIBLE)
        if self.usable_ids < min(width, self.vocab_size):
            logits = logits.clone()
            logits[:, self.usable_ids :] = IMPOSSIBLE
        return logits

    def _keepable(self, sequence: TokenSequence, total: int, common: int) -> int:
        """How many of `common` leading entries `generate` would have, too, when it reads a text of `total` tokens."""
        if self.rope is None:
            return common
        cached = len(self._ids) + self._tail_fed
        continues = self._read is sequence
        return min(common, self.rope.keepable(cached, self._first, sequence.prompt_length, total, continues))

    def _in_common(self, sequence: TokenSequence, tail: Tokens) -> int:
        """Length of the longest prefix that the cache shares with `sequence` + `tail`."""
        if tail is self._tail and self._text is sequence and len(self._ids) == len(sequence):
            # The drafting loop: same text, one more drafted token. Nothing is compared, nothing read from the device.
            return len(self._ids) + min(self._tail_fed, len(tail))
        if self._tail is not None:
            self._ids += self._tail.host_ids()[: self._tail_fed]
            self._tail, self._tail_fed = None, 0
        # Verified ids never change, so what agreed once is not compared again: the cost does not grow with the text.
        start = min(self._agreed, len(self._ids)) if self._text is sequence else 0
        limit = min(len(self._ids), len(sequence))
        common = start
        cached, wanted = self._ids, sequence.ids
        while common < limit and cached[common] == wanted[common]:
            common += 1
        self._text = sequence
        self._agreed = min(common, sequence.verified)
        return common

    def _remember(self, sequence: TokenSequence, tail: Tokens, keep: int) -> torch.Tensor:
        """Note that the cache will hold `sequence` + `tail`; returns the ids from `keep` on, on the model's device."""
        known = len(sequence)
        parts = []
        if keep < known:
            fresh = sequence.ids[keep:]
            parts.append(torch.tensor(fresh, dtype=torch.long, device=self.device))
            del self._ids[keep:]
            self._ids += fresh
        else:
            del self._ids[known:]
        if len(tail):
            parts.append(tail.since(max(0, keep - known)).to(self.device, non_blocking=True))
        self._tail, self._tail_fed = tail, len(tail)
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def _counts_positions(model: PreTrainedModel) -> bool:
    """Whether `generate` passes positions 0, 1, 2, ... (and not positions in space and time, which the model knows)."""
    method = "_prepare_position_ids_for_generation"
    return getattr(type(model), method, None) is getattr(GenerationMixin, method, None)


def output_width(model: PreTrainedModel) -> int:
    """Number of logits the model's head gives."""
    head = model.get_output_embeddings()
    return int(getattr(head, "out_features", None) or model.config.get_text_config().vocab_size)


def context_limit(model: PreTrainedModel, only_hard: bool) -> int | None:
    """Longest text the model can read, or None.

    Rotary positions go on past the trained length, and `generate` lets a target do so (a soft limit); a learned position
    table has no further rows (a hard one).
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    soft = getattr(config, "rope_parameters", None) is not None
    return None if limit is None or (only_hard and soft) else int(limit)


class _HostTimer:
    """Wall time of forwards on a device that runs them synchronously."""

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, report: Callable[[float], None]) -> None:
        report(time.perf_counter() - self._started)

    def collect(self) -> None:
        pass


class _CudaTimer:
    """CUDA events around forwards, read only once they have happened: never a reason to wait."""

    def __init__(self) -> None:
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event, Callable[[float], None]]] = []

    def start(self) -> None:
        self._started = torch.cuda.Event(enable_timing=True)
        self._started.record()

    def stop(self, report: Callable[[float], None]) -> None:
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        self._pending.append((self._started, ended, report))

    def collect(self) -> None:
        while self._pending and self._pending[0][1].query():
            started, ended, report = self._pending.pop(0)
            report(started.elapsed_time(ended) / 1000)
