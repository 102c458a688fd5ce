"""Weight-only int4 and int8 copies of a model for CPU: a cheap tier derived from the target, or a faster target.

Only the weights of linear layers are rounded; activations stay in bfloat16. Dynamic quantisation, which rounds the
activations too, agrees with the target on half as many tokens for models with outlier features, and is not offered.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from adaptive_pyramid.decoding.weights import note_derived
from adaptive_pyramid.errors import check_int, unknown_name
from adaptive_pyramid.models.sharing import shared_copy, tier_bytes
from adaptive_pyramid.wrappers import unwrapped

__all__ = ["QuantizedLinear", "forward_bytes", "quantize", "tier_bytes"]

Scheme = Literal["int4", "int8"]
SCHEMES = ("int4", "int8")
GROUP_SIZES = (32, 64, 128, 256)
_LEVELS = 15  # int4 has levels 0 .. 15
_WIDE = 32  # rows from which a dense product is faster than the kernels, which re-expand the weights for every few rows
_KERNELS = ("_weight_int4pack_mm_for_cpu", "_convert_weight_to_int4pack_for_cpu", "_weight_int8pack_mm")


class QuantizedLinear(nn.Module):
    """y = x W^T + b with W[out, in] in 4 or 8 bits: x [..., in] of any floating dtype -> y [..., out] of x's dtype.

    The product is taken in bfloat16 whatever the dtype of x: the kernels have no vectorised path for others (float32
    took 25 times as long), and the rounding of the weights is the larger error anyway.

    From 32 rows on (a prompt) the source's own weights are used, which this layer keeps: the kernels are made for few
    rows, and took 1.8 times as long as a dense product over a prompt of 128 tokens. Below that, in decoding:

    int4: W ~ zero + scale * (q - 8) with q in 0 .. 15, a scale and a zero per group of `group_size` inputs.
    int8: W ~ scale * q with q in -127 .. 127, a scale per output.
    """

    packed: Tensor
    scale: Tensor
    dense: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, scheme: Scheme, group_size: int = 32):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.scheme, self.group_size = scheme, group_size
        self.bias = bias  # an nn.Parameter of the source, shared with it
        packed, scale = _pack_int4(weight, group_size) if scheme == "int4" else _pack_int8(weight)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("dense", weight.detach(), persistent=False)  # the source's storage, not a copy

    def _product(self, rows: Tensor) -> Tensor:
        """rows [n, in] bfloat16 -> [n, out] bfloat16."""
        if self.scheme == "int4":
            return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, self.group_size, self.scale)
        return torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > _WIDE * self.in_features:
            return nn.functional.linear(x.to(self.dense.dtype), self.dense, self.bias).to(x.dtype)
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16).contiguous()
        y = self._product(rows).to(x.dtype).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def dequantized(self) -> Tensor:
        """The weights as the kernel multiplies with them, rounded to bfloat16: bfloat16[out, in]."""
        return self._product(torch.eye(self.in_features, dtype=torch.bfloat16)).T.contiguous()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, scheme={self.scheme}"


def forward_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that a forward over a few tokens reads: no embedding rows, and no weights kept for prompts."""
    unread = {id(layer.dense) for layer in model.modules() if isinstance(layer, QuantizedLinear)}
    if model.get_input_embeddings() is not None and not model.config.get_text_config().tie_word_embeddings:
        unread.add(id(model.get_input_embeddings().weight))
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()) if id(tensor) not in unread)


def _pack_int4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """(packed uint8[out, in / 2], scale and zero bfloat16[in / group_size, out, 2]) of weight[out, in].

    Min / max per group: weights that already are 16 evenly spaced values per group (GGUF Q4_1) keep their levels.
    The levels are chosen after scale and zero were rounded to bfloat16, so that rounding error is not added twice.
    """
    rows, columns = weight.shape
    groups = weight.detach().float().reshape(rows, columns // group_size, group_size)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / _LEVELS).bfloat16()
    zero = (low + 8 * (high - low) / _LEVELS).bfloat16()
    step = torch.where(scale == 0, 1, scale).float()  # a constant group: every level is 8, its value the zero
    levels = ((groups - zero.float()[..., None]) / step[..., None]).round_().add_(8).clamp_(0, _LEVELS)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.view(rows, columns).to(torch.int32), 1)
    return packed, torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()


def _pack_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(levels int8[out, in], scale bfloat16[out]) of weight[out, in]; symmetric, one scale per output."""
    weight = weight.detach().float().contiguous()
    scale = (weight.abs().amax(-1) / 127).bfloat16()
    step = torch.where(scale == 0, 1, scale).float()
    return (weight / step[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def quantize(
    model: PreTrainedModel, body: Scheme | None = "int4", head: Scheme | None = None, group_size: int = 32
) -> PreTrainedModel:
    """A copy of `model` with weight-only quantised linear layers, for CPU; the source stays as it was.

    `body` says how every linear layer but the LM head is stored, `head` how the LM head is; None leaves them as they
    are. Memory is saved where the source stays in use anyway (as the tier above): the copy keeps the source's weights for
    prompts. `group_size` (32, 64, 128 or 256 inputs) belongs to int4. What is not quantised (embeddings, norms, biases)
    is shared with `model`, tensor by tensor. A layer that is quantised already stays as it is.

    Raises ValueError for unknown schemes, for a model that is not on the CPU, has no linear layers, or has one whose
    shape the kernels cannot take; RuntimeError where this build of torch lacks the kernels.
    """
    for field, scheme in (("body", body), ("head", head)):
        if scheme is not None and scheme not in SCHEMES:
            raise ValueError(unknown_name(f"{field} scheme", scheme, SCHEMES))
    if body is None and head is None:
        raise ValueError("body and head are both None: nothing to quantise (choose 'int4' or 'int8' for one of them)")
    if check_int("group_size", group_size, 1) not in GROUP_SIZES:
        raise ValueError(f"group_size must be one of {GROUP_SIZES}, got {group_size}")
    model = unwrapped(model)
    _check_device(model)
    layers = _linear_layers(model, body, head)
    for name, (layer, scheme) in layers.items():
        _check_shape(name, _weight(layer), scheme, group_size)

    quantised = shared_copy(model)
    for name, (layer, scheme) in layers.items():
        parent, _, attribute = name.rpartition(".")
        replacement = QuantizedLinear(_weight(layer), layer.bias, scheme, group_size)
        setattr(quantised.get_submodule(parent), attribute, replacement.train(model.training))
    if head is not None:
        quantised.config.get_text_config().tie_word_embeddings = False  # the head is no longer the embedding
    note_derived(quantised, model, shares_all=False)
    return quantised


def _check_device(model: PreTrainedModel) -> None:
    devices = {tensor.device.type for tensor in model.parameters()}
    if devices != {"cpu"}:
        raise ValueError(f"quantised copies run on device 'cpu' only; this model is on {', '.join(sorted(devices))}")
    missing = [kernel for kernel in _KERNELS if not hasattr(torch.ops.aten, kernel)]
    if missing:
        raise RuntimeError(
            f"torch {torch.__version__} lacks the CPU kernels {', '.join(missing)}; torch 2.6 and later "
            "have them on x86-64 and ARM64"
        )


def _linear_layers(
    model: PreTrainedModel, body: Scheme | None, head: Scheme | None
) -> dict[str, tuple[nn.Linear | Conv1D, Scheme]]:
    """name -> (layer, scheme) of every layer to be quantised."""
    output = model.get_output_embeddings()
    found = {
        name: (module, head if module is output else body)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    }
    chosen = {name: (layer, scheme) for name, (layer, scheme) in found.items() if scheme is not None}
    if not chosen:
        part = "linear layers" if not found else "unquantised linear layers in the part asked for"
        raise ValueError(f"{type(model).__name__} has no {part} (body={body!r}, head={head!r})")
    return chosen


def _weight(layer: nn.Linear | Conv1D) -> Tensor:
    return layer.weight.T if isinstance(layer, Conv1D) else layer.weight  # GPT-2's Conv1D stores [in, out]


def _check_shape(name: str, weight: Tensor, scheme: Scheme, group_size: int) -> None:
    rows, columns = weight.shape
    if scheme == "int4" and (columns % group_size or rows % 16):
        raise ValueError(
            f"{name}: int4 needs inputs divisible by group_size={group_size} and outputs divisible by 16, "
            f"got a weight of {rows} outputs and {columns} inputs"
        )
    if scheme == "int8" and columns % 16:  # not checked by the kernel: it reads out of bounds, wrong or a crash
        raise ValueError(
            f"{name}: int8 needs inputs divisible by 16, got a weight of {rows} outputs and {columns} inputs"
        )
