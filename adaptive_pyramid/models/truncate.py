"""A model cut to some of its layers, sharing every weight with the source."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from adaptive_pyramid.decoding.weights import note_derived
from adaptive_pyramid.models.sharing import shared_copy
from adaptive_pyramid.wrappers import unwrapped

_PER_LAYER_FIELDS = ("layer_types", "mlp_layer_types", "no_rope_layers")  # configuration lists with a value per layer


def truncate(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A copy of `model` that runs only the decoder layers `layers` (increasing indices from 0), then norm and LM head.

    Every tensor is shared with `model`, which stays as it was. The layers of the copy are numbered anew, so that they
    fit a KV cache of their own, and its configuration says how many there are. An untrained cut agrees with its source
    on next to no tokens: it is a body for a trained head, not a draft by itself.

    Raises ValueError for indices that are not increasing, out of range, or none; TypeError if they are not ints.
    """
    model = unwrapped(model)
    name, stack = _layer_stack(model)
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        raise TypeError(f"layers must be a sequence of layer indices, such as [0, 1], got {layers!r}")
    layers = list(layers)
    for index in layers:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"layers must be ints, got {index!r}")
    if not layers or layers != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= len(stack):
        raise ValueError(f"layers must be increasing indices in 0 .. {len(stack) - 1}, at least one, got {layers}")

    cut = shared_copy(model)
    kept = nn.ModuleList(_layer_stack(cut)[1][index] for index in layers)
    for index, layer in enumerate(kept):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                setattr(module, "layer_idx", index)  # noqa: B010 (a module's type knows no such attribute)
    setattr(cut.base_model, name, kept)

    config = cut.config.get_text_config()
    for field in _PER_LAYER_FIELDS:
        values = getattr(config, field, None)
        if values is not None:
            setattr(config, field, [values[index] for index in layers])
    config.num_hidden_layers = len(layers)
    note_derived(cut, model, shares_all=True)
    return cut


def _layer_stack(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The base model's list of decoder layers and its name ("layers" in most models, "h" in GPT-2)."""
    count = model.config.get_text_config().num_hidden_layers
    stacks = [
        (name, module)
        for name, module in model.base_model.named_children()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(stacks) != 1:
        raise ValueError(f"{type(model).__name__} has no single list of {count} decoder layers to cut")
    return stacks[0]
