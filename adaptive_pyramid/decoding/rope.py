"""Rotary frequencies that depend on how long the text is: what a cache may keep, and where drafting must stop.

Two types do: `longrope` has one set of frequencies up to a length and another beyond it, `dynamic` a set of its own for every
length beyond. `generate` decides how keys from before count: most models keep them, those of the Phi-3 family read the whole
text again at the crossing. One wide forward would give all its positions the frequencies of its last one, so a target's
blocks end where they change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True, slots=True)
class LengthDependence:
    """How a model's rotary frequencies depend on the length of the text.

    Args:
        length: longest text, in tokens, under the first set of frequencies. at_every_length: whether they change with every
            token beyond. rereads: whether `generate` reads the whole text again once it is longer.
    """

    length: int
    at_every_length: bool
    rereads: bool

    def room(self, tokens: int) -> int | None:
        """How many tokens behind `tokens` one forward may read as `generate` would, one at a time; None = any number."""
        if tokens <= self.length:
            return self.length - tokens
        return 0 if self.at_every_length else None

    def keepable(self, cached: int, first: int, prompt: int, total: int, continues: bool) -> int:
        """How many leading cached entries are those that `generate` would have.

        Args:
            cached: entries there are. first: how many leading ones were made under the first set of frequencies.
            prompt: length of the prompt, which `generate` reads at once. total: length of the text to read now.
            continues: whether all entries belong to this very generation.
        """
        if self.rereads or not continues:
            if (total if self.rereads else prompt) <= self.length:
                return first
            return 0 if first or self.at_every_length else cached
        return first if total <= self.length else cached


def length_dependence(model: PreTrainedModel) -> LengthDependence | None:
    """What the model's rotary embeddings say of the length of the text; None where it changes nothing."""
    lengths, at_every_length = set(), False
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if not isinstance(kind, str):
                continue
            if "dynamic" in kind:
                # One less: a text of exactly the original length keeps whatever frequencies a longer one left behind.
                original: Any = module.original_max_seq_len
                lengths.add(int(original) - 1)
                at_every_length = True
            elif kind == "longrope":
                parameters: Any = module.config.rope_parameters  # type: ignore[union-attr]
                parameters = parameters if layer_type is None else parameters[layer_type]
                lengths.add(int(parameters["original_max_position_embeddings"]))
    if not lengths:
        return None
    return LengthDependence(min(lengths), at_every_length or len(lengths) > 1, _rereads(model, min(lengths)))


def _rereads(model: PreTrainedModel, length: int) -> bool:
    """Whether `generate` drops the cache of a text of `length` tokens when it grows by one (asked, not known by name)."""
    if not hasattr(model.config, "original_max_position_embeddings"):
        return False
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, length, 1), torch.zeros(1, 1, length, 1), 0)
    ids = torch.zeros(1, length + 1, dtype=torch.long)
    # The keyword of newer and of older transformers.
    prepare: Callable[..., dict[str, Any]] = model.prepare_inputs_for_generation  # type: ignore[assignment]
    keyword = "cache" if "cache" in inspect.signature(prepare).parameters else "past_key_values"
    inputs = prepare(ids, attention_mask=torch.ones_like(ids), **{keyword: cache})
    return inputs.get(keyword) is None
