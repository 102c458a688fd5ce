"""What `generate` returns, and text that leaves while tokens are verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .stats import GenerationStats


@dataclass
class PyramidOutput:
    """One continued prompt.

    Attributes:
        sequences: long [1, prompt + new], as `model.generate` returns it, padding of the prompt included (on the CPU). ids: the new tokens.
        text: the new tokens decoded, special tokens left out, ending right behind a stop string; None without tokenizer.
        stats: per-block statistics; print it, or `stats.explain()`.
        finish_reason: "length", "eos", "stop_string" or "stopping_criteria".
        scores, logits: with output_scores / output_logits, a tuple of float32 [1, V] per new token: the target's
            processed / unprocessed scores, as in Hugging Face outputs; else None.
        seed: what gives a sampled text again (see `AdaptivePyramid.generate`); None for greedy, and where no seed does:
            control that adapts, with a method whose text depends on lengths and routes, or `pyramid` without `seed=`.
    """

    sequences: torch.Tensor
    ids: list[int]
    text: str | None
    stats: GenerationStats
    finish_reason: str
    scores: tuple[torch.Tensor, ...] | None = None
    logits: tuple[torch.Tensor, ...] | None = None
    seed: int | None = None

    @property
    def tokens_by_tier(self) -> dict[int, int]:
        return self.stats.tokens_by_tier

    def __str__(self) -> str:
        return self.text if self.text is not None else str(self.ids)


@dataclass
class BatchOutput:
    """Several continued prompts, in order: a sequence of PyramidOutput.

    `sequences` is long [B, longest], rows as `model.generate` lays them out: prompts padded on the left to a common
    length, outputs padded on the right with the pad token.
    """

    sequences: torch.Tensor
    outputs: list[PyramidOutput]

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, index: int) -> PyramidOutput:
        return self.outputs[index]

    def __iter__(self) -> Iterator[PyramidOutput]:
        return iter(self.outputs)

    @property
    def ids(self) -> list[list[int]]:
        return [output.ids for output in self.outputs]

    @property
    def text(self) -> list[str | None]:
        return [output.text for output in self.outputs]

    @property
    def stats(self) -> list[GenerationStats]:
        return [output.stats for output in self.outputs]


def padded_batch(outputs: list[PyramidOutput], pad_token_id: int) -> BatchOutput:
    """Lay the rows out as `model.generate` does: prompts end, and new tokens begin, at one column."""
    rows = [output.sequences[0].tolist() for output in outputs]
    prompt_widths = [len(row) - len(output.ids) for row, output in zip(rows, outputs)]
    new_width = max(len(output.ids) for output in outputs)
    rows = [
        [pad_token_id] * (max(prompt_widths) - width) + row + [pad_token_id] * (new_width - len(output.ids))
        for row, width, output in zip(rows, prompt_widths, outputs)
    ]
    return BatchOutput(torch.tensor(rows, dtype=torch.long), outputs)


class Detokenizer:
    """Text of a growing list of ids, in pieces whose concatenation is the text of the whole.

    Decodes a short window per token, twice: once without the new id and once with it, because a token's text depends
    on its neighbours (spaces, bytes of one character). A piece is held back while it ends in an incomplete character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
        self._ids: list[int] = []
        self._window = self._read = 0
        self.text = ""

    def push(self, token: int) -> str:
        """Add one id; returns the text that became certain."""
        self._ids.append(token)
        whole = self._decode(self._ids[self._window :])
        return "" if whole.endswith("\ufffd") else self._advance(whole)

    def flush(self) -> str:
        """The rest, incomplete characters included."""
        return self._advance(self._decode(self._ids[self._window :]))

    def _advance(self, whole: str) -> str:
        before = self._decode(self._ids[self._window : self._read])
        piece = whole[len(before) :]
        if piece:
            self._window, self._read = self._read, len(self._ids)
            self.text += piece
        return piece


class StopText:
    """Ends a text where one of the stop strings appears; called with the new ids after every token.

    Stop strings are looked for in the text with its special tokens, as transformers' StopStringCriteria does, also where
    they span special and other tokens. `end` is then the length of the text up to and with the match, special tokens left
    out, so that nothing behind it leaks.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        for string in strings:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop_strings must be non-empty strings, got {string!r}")
        self.strings = tuple(strings)
        self._reach = max(map(len, strings))
        self._tokenizer = tokenizer
        self._special = _special_ids(tokenizer)
        self._detokenizer = Detokenizer(tokenizer)
        self._whole = ""  # with special tokens
        self._seen = 0
        self.end: int | None = None

    def __call__(self, new_ids: Sequence[int]) -> bool:
        for token in new_ids[self._seen :]:
            self._seen += 1
            if token in self._special:
                # Decoded apart: some tokenizers put spaces around special tokens, which stop strings do not have.
                found = self._append(self._detokenizer.flush()) or self._append(
                    self._tokenizer.convert_ids_to_tokens(token), shown=False
                )
            else:
                found = self._append(self._detokenizer.push(token))
            if found:
                return True
        return False

    def _append(self, piece: str, shown: bool = True) -> bool:
        """Whether a stop string ends in `piece`, the next of the text."""
        start = max(0, len(self._whole) - self._reach + 1)
        self._whole += piece
        ends = [at + len(string) for string in self.strings if (at := self._whole.find(string, start)) >= 0]
        if not ends:
            return False
        self.end = len(self._detokenizer.text) - (len(self._whole) - min(ends) if shown else 0)
        return True


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """What `decode(skip_special_tokens=True)` leaves out: named special tokens, and added ones that are marked special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}
