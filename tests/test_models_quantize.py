"""Weight-only quantised copies: faithful, sharing what they do not quantise, and clear about what they cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptive_pyramid.models.quantize import QuantizedLinear, forward_bytes, quantize, tier_bytes
from tests.tiny import agreement, greedy_text, tiny_model


def _model(arch="llama", **overrides):
    return tiny_model(arch, dtype=overrides.pop("dtype", torch.float32), **overrides)


def _q4_1(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Weights that are 16 levels per group of 32, minimum and maximum taken, as GGUF's Q4_1 stores them."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 16, (rows, columns // 32, 32), generator=generator)
    levels[..., 0], levels[..., 1] = 0, 15
    scale = (torch.rand(rows, columns // 32, 1, generator=generator) + 0.5).half().float() * 0.01
    low = -7 * scale + 0.001 * torch.randn(rows, columns // 32, 1, generator=generator).half().float()
    return (low + scale * levels).view(rows, columns)


@pytest.mark.parametrize("scheme, columns", [("int4", 64), ("int4", 576), ("int8", 64), ("int8", 80)])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_product_is_that_of_the_dequantised_weights(scheme, columns, rows):
    generator = torch.Generator().manual_seed(rows)
    layer = QuantizedLinear(torch.randn(48, columns, generator=generator), nn.Parameter(torch.ones(48)), scheme)
    x = torch.randn(2, rows, columns, generator=generator).bfloat16().float()
    expected = x @ layer.dequantized().float().T + 1
    assert layer(x).dtype == x.dtype and layer(x).shape == (2, rows, 48)
    assert (layer(x) - expected).norm() / expected.norm() < 0.01


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_a_prompt_goes_through_the_weights_of_the_source(scheme):
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    layer = QuantizedLinear(weight, nn.Parameter(torch.ones(48)), scheme)
    x = torch.randn(1, 33, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), nn.functional.linear(x, weight, torch.ones(48)))
    assert not torch.equal(layer(x[:, :32]), layer(x)[:, :32])
    assert layer.dense.data_ptr() == weight.data_ptr()


def test_int4_reproduces_weights_that_are_q4_1():
    weight = _q4_1(64, 128)
    restored = QuantizedLinear(weight, None, "int4").dequantized().float()
    error = (restored - weight).norm() / weight.norm()
    assert error < 0.005  # rounding to bfloat16 alone costs .0017
    assert (weight.bfloat16().float() - weight).norm() / weight.norm() > error / 4


def test_int8_error_is_below_half_a_step():
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    layer = QuantizedLinear(weight, None, "int8")
    exact = layer.packed.float() * layer.scale.float()[:, None]
    assert ((exact - weight).abs() <= layer.scale.float()[:, None] * 0.51 + weight.abs() * 2**-8).all()


def test_constant_and_zero_groups_survive():
    weight = torch.zeros(16, 64)
    weight[:, :32] = 0.75
    for scheme in ("int4", "int8"):
        restored = QuantizedLinear(weight, None, scheme).dequantized().float()
        assert torch.allclose(restored, weight, atol=0.01)


@pytest.mark.parametrize("arch", ["llama", "gpt2", "qwen2", "gemma3"])
@pytest.mark.parametrize("body, head", [("int4", None), ("int8", "int8"), (None, "int8")])
def test_quantised_copy_agrees_with_its_source_and_leaves_it_alone(arch, body, head):
    model = _model(arch)
    ids = greedy_text(model, 28)  # few enough rows for the kernels
    before, keys = model(ids).logits, list(model.state_dict())
    copy = quantize(model, body=body, head=head)
    assert torch.equal(model(ids).logits, before) and list(model.state_dict()) == keys
    assert not torch.equal(copy(ids).logits, before)
    assert agreement(copy, model, ids) > (0.5 if body == "int4" else 0.85)
    assert copy.get_input_embeddings().weight is model.get_input_embeddings().weight
    assert isinstance(copy.get_output_embeddings(), QuantizedLinear) == (head is not None)
    out = copy.generate(ids[:, :4], max_new_tokens=5, do_sample=False)
    assert out.shape[1] <= 9


def test_tied_embedding_stays_with_the_source_when_the_head_is_quantised():
    model = _model(tie_word_embeddings=True)
    copy = quantize(model, body=None, head="int8")
    assert copy.get_input_embeddings().weight is model.lm_head.weight
    assert model.config.tie_word_embeddings and not copy.config.tie_word_embeddings
    again = quantize(quantize(model, body="int4"), body=None, head="int4")  # body quantised before: kept
    assert isinstance(again.model.layers[0].mlp.up_proj, QuantizedLinear)


def test_float64_and_bfloat16_sources():
    for dtype in (torch.float64, torch.bfloat16):
        model = _model(dtype=dtype)
        copy = quantize(model, head="int8")
        logits = copy(torch.tensor([[1, 5, 9]])).logits
        assert logits.dtype == dtype and torch.isfinite(logits).all()


def test_errors_name_the_field_and_what_was_expected():
    model = _model()
    with pytest.raises(ValueError, match="did you mean 'int4'"):
        quantize(model, body="int44")
    with pytest.raises(ValueError, match="both None"):
        quantize(model, body=None, head=None)
    with pytest.raises(ValueError, match="group_size must be one of"):
        quantize(model, group_size=48)
    with pytest.raises(ValueError, match=r"model\.layers\.0\..*group_size=64.*32 inputs"):
        quantize(model, group_size=64)
    with pytest.raises(ValueError, match="lm_head.*divisible by 16, got a weight of 60 outputs"):
        quantize(_model(vocab_size=60), body=None, head="int4")
    with pytest.raises(ValueError, match="down_proj: int8 needs inputs divisible by 16, got .* 40 inputs"):
        quantize(_model(intermediate_size=40), body="int8")
    with pytest.raises(ValueError, match="'cpu' only; this model is on meta"):
        quantize(_model().to("meta"))
    with pytest.raises(ValueError, match="no unquantised linear layers"):
        quantize(quantize(model, body="int4"), body="int4")


def test_missing_kernels_are_reported(monkeypatch):
    from adaptive_pyramid.models import quantize as module

    monkeypatch.setattr(module, "_KERNELS", ("_no_such_kernel",))
    with pytest.raises(RuntimeError, match="lacks the CPU kernels _no_such_kernel; .* x86-64 and ARM64"):
        quantize(_model())


def test_tier_bytes_count_each_storage_once():
    model = _model(tie_word_embeddings=True)
    copy = quantize(model, body="int4")
    # Embedding, norms, rotary tables, and the weights that a prompt goes through: all of the source.
    shared = sum(tensor.nbytes for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
    packed = sum(
        layer.packed.nbytes + layer.scale.nbytes for layer in copy.modules() if isinstance(layer, QuantizedLinear)
    )
    lookup = object()
    assert tier_bytes([lookup, copy, model]) == [(0, 0), (packed, shared), (0, shared)]
    assert tier_bytes([copy]) == [(packed + shared, 0)]


def test_bytes_read_in_decoding_leave_out_what_only_prompts_use():
    model = _model(tie_word_embeddings=False)
    embedding = model.get_input_embeddings().weight.nbytes
    everything = sum(tensor.nbytes for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
    assert forward_bytes(model) == everything - embedding
    copy = quantize(model, body="int4", head="int4")
    packed = sum(
        layer.packed.nbytes + layer.scale.nbytes for layer in copy.modules() if isinstance(layer, QuantizedLinear)
    )
    assert packed < forward_bytes(copy) < packed + everything / 20
