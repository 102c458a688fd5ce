"""A layer cut shares memory with its source, numbers its layers anew, and runs with a cache of its own."""

from __future__ import annotations

import pytest
import torch

from adaptive_pyramid.models.quantize import tier_bytes
from adaptive_pyramid.models.truncate import truncate
from tests.tiny import ARCHITECTURES, tiny_model

IDS = torch.tensor([[1, 7, 9, 30, 31, 8, 12, 40, 41, 9, 17, 22]])  # longer than the sliding windows


def _layers(arch):
    return 3 if arch == "gemma3" else 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_layers_give_the_source(arch):
    model = tiny_model(arch)
    whole = truncate(model, layers=range(_layers(arch)))
    assert torch.equal(whole(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_generation_with_cache_equals_generation_without(arch):
    model = tiny_model(
        arch,
        num_hidden_layers=4,
        eos_token_id=None,
        **({"layer_types": ["sliding_attention", "full_attention"] * 2} if arch == "gemma3" else {}),
    )
    before = model(IDS).logits
    cut = truncate(model, layers=[1, 3])
    assert cut.config.num_hidden_layers == 2 and model.config.num_hidden_layers == 4
    with_cache, without = (
        cut.generate(IDS, max_new_tokens=12, do_sample=False, use_cache=use, pad_token_id=0) for use in (True, False)
    )
    assert torch.equal(with_cache, without)
    assert not torch.equal(cut(IDS).logits, before)
    assert torch.equal(model(IDS).logits, before), "the source changed"
    stack = getattr(model.base_model, "h", None) or model.base_model.layers
    assert len(stack) == 4
    indices = {i: {m.layer_idx for m in layer.modules() if hasattr(m, "layer_idx")} for i, layer in enumerate(stack)}
    assert all(found <= {i} for i, found in indices.items()), "the source's layers were renumbered"


def test_layer_types_follow_their_layers():
    model = tiny_model("gemma3")
    cut = truncate(model, layers=[1, 2])
    assert cut.config.layer_types == ["full_attention", "sliding_attention"]
    assert len(model.config.layer_types) == 3


def test_the_cut_equals_a_model_built_with_those_layers():
    model = tiny_model("llama", num_hidden_layers=3)
    small = tiny_model("llama", num_hidden_layers=2)
    weights = {
        name.replace("layers.2.", "layers.1."): tensor
        for name, tensor in model.state_dict().items()
        if "layers.1." not in name
    }
    small.load_state_dict(weights)
    assert torch.equal(truncate(model, layers=[0, 2])(IDS).logits, small(IDS).logits)


def test_every_tensor_is_shared():
    model = tiny_model("llama")
    (own, shared), _ = tier_bytes([truncate(model, layers=[0]), model])
    assert own == 0 and shared > 0


@pytest.mark.parametrize(
    "layers, error",
    [
        ([], ValueError),
        ([1, 0], ValueError),
        ([0, 0], ValueError),
        ([2], ValueError),
        ([-1], ValueError),
        ([0.0], TypeError),
        ([True], TypeError),
    ],
)
def test_bad_layers(layers, error):
    with pytest.raises(error, match="layers must be"):
        truncate(tiny_model("llama"), layers=layers)
