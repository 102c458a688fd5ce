"""Key/value caches that can be cropped to any length, and which models have none."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class _RoomyLayer(DynamicLayer):
    """A cache layer with spare room at its end: appending copies the new entries only, cropping sets a number.

    The stock layer concatenates, which moves the whole cache at every forward: work that grows with the context.
    """

    _room: tuple[torch.Tensor, torch.Tensor] | None = None
    _length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self._length, self._length + key_states.shape[-2]
        if self._room is None or end > self._room[0].shape[-2]:
            old = self._room or (key_states, value_states)
            self._room = _moved(old[0], start, end), _moved(old[1], start, end)
        keys, values = self._room
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        self._length = end
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length

    def crop(self, tokens_to_remove: int) -> None:
        # The stock layer slices both tensors, sixty of them in a model of thirty layers; `update` will do so anyway.
        self._length = max(0, self._length - abs(tokens_to_remove))


def _moved(states: torch.Tensor, length: int, needed: int) -> torch.Tensor:
    """The first `length` entries of `states` at the start of a room half as large again as `needed`."""
    room = states.new_empty(*states.shape[:-2], max(256, needed + needed // 2), states.shape[-1])
    room[..., :length, :] = states[..., :length, :]
    return room


def croppable_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache with the layers that `generate` would give it, each in a form that can be cropped to any length."""
    cache = DynamicCache(config=config.get_text_config(decoder=True))
    # A layer made for a sliding window trims itself on crop and cannot be rolled back twice; one that keeps everything
    # gives the same attention, because models mask the window themselves.
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    cache.layers = [_RoomyLayer() if type(layer) in plain else layer for layer in cache.layers]
    return cache


def check_croppable(model: PreTrainedModel, tier: int) -> None:
    """Raise ValueError, with the reason, for a model that this library cannot decode with."""
    name = type(model).__name__
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"tier {tier}: {name} is an encoder-decoder model; expected a decoder-only causal LM")
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"tier {tier}: {name} has no language-model head; expected a causal LM, as AutoModelForCausalLM loads it"
        )
    try:
        layers = DynamicCache(config=config.get_text_config(decoder=True)).layers
    except Exception as error:
        raise ValueError(
            f"tier {tier}: transformers can make no key/value cache for {name} ({error}); expected a model that "
            "`generate` can run with one"
        ) from error
    if getattr(model, "_is_stateful", False) or not all(map(_keeps_one_entry_per_token, layers)):
        raise ValueError(
            f"tier {tier}: {name} keeps a recurrent state that cannot be rolled back when a draft is refused; "
            "expected a model whose layers are all attention with a key/value cache"
        )
    if any(type(layer).__name__ == "DynamicIndexedLayer" for layer in layers):
        raise ValueError(
            f"tier {tier}: {name} selects keys with an index that selects others for several new tokens at once than for one "
            "at a time, so no draft can be verified exactly; expected a model with full or sliding-window attention"
        )
    if any(isinstance(layer, DynamicSlidingWindowLayer) for layer in layers) and not _masks_windows(model):
        raise ValueError(
            f"tier {tier}: {name} leaves its sliding window to the cache that `generate` trims and that cannot be rolled "
            "back; expected a model that masks its window"
        )


def _masks_windows(model: PreTrainedModel) -> bool:
    """Whether a model of transformers makes masks for windows or chunks; other code is taken at its word."""
    modules = {type(module).__module__ for module in model.modules()}
    sources = [sys.modules[name] for name in modules if name.startswith("transformers.models.") and name in sys.modules]
    return not sources or any(
        "mask" in name and ("sliding" in name or "chunked" in name or "masks" in name)
        for source in sources
        for name in vars(source)
    )


def _keeps_one_entry_per_token(layer: object) -> bool:
    if hasattr(layer, "recurrent_states"):
        return False
    return getattr(layer, "is_croppable", False) or isinstance(layer, DynamicSlidingWindowLayer)
