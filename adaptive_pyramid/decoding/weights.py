"""Whether a model's weights are still those that its cached keys and values, or a copy of it, were made with."""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any, cast
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn

_SAMPLE = 16  # neighbouring elements compared of every tensor: a line of memory or two


class WeightWatch:
    """Notices that the weights of `model` changed, in some hundred microseconds.

    It compares the modules (an adapter added, a layer replaced), PEFT's adapters (active, disabled, merged, their
    scales), and of every parameter and persistent buffer the object, its storage, its version counter and a sample of
    its values, since fused optimisers and writes through `.data` leave the version counter as it was. What it cannot
    see: a write through `.data` or a NumPy view that spares the sampled elements of every tensor.

    Offloaded weights (on the meta device at rest) are not compared. Inference tensors count no versions and are taken
    for changed every time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self.renew()

    def renew(self) -> None:
        """Compare with what is there now from here on."""
        modules = list(cast(nn.Module, self._model()).modules())
        self._children = [module._modules for module in modules if module._modules]
        self._parameters = [module._parameters for module in modules if module._parameters]
        self._buffers = [
            (module._buffers, name)
            for module in modules
            for name in module._buffers
            if name not in module._non_persistent_buffers_set  # rotary frequencies: forwards themselves replace them
        ]
        self._adapted = [module for module in modules if hasattr(module, "merged_adapters")]
        # The objects themselves, not their addresses, which a later object may take.
        self._modules, self._tensors = self._held()
        plain = [
            tensor for tensor in self._tensors if tensor is not None and type(tensor) in (Tensor, nn.Parameter)
        ]  # has a storage
        self._uncounted = any(tensor.is_inference() for tensor in plain)
        self._counted = [tensor for tensor in plain if not tensor.is_inference()]
        self._samples: dict[torch.device, list[Tensor]] = {}
        for tensor in plain:
            if tensor.is_contiguous() and tensor.numel():
                flat = tensor.detach().view(-1)
                middle = len(flat) // 2
                self._samples.setdefault(tensor.device, []).append(flat[middle : middle + _SAMPLE].view(torch.uint8))
        self._adapters, self._versions, self._values = self._adapter_states(), self._counts(), self._sampled()

    def structure_changed(self) -> bool:
        """Whether other modules, tensors or adapters are in place: what a copy that shares the tensors does not follow."""
        modules, tensors = self._held()
        return not (
            _identical(modules, self._modules)
            and _identical(tensors, self._tensors)
            and self._adapter_states() == self._adapters
        )

    def changed(self) -> bool:
        """Whether the weights are others than at the last `renew`."""
        return (
            self._uncounted
            or self.structure_changed()
            or self._counts() != self._versions
            or not all(map(torch.equal, self._sampled(), self._values))
        )

    def _held(self) -> tuple[list[nn.Module], list[Tensor | None]]:
        modules = list(chain.from_iterable(map(dict.values, self._children)))
        tensors = chain(
            chain.from_iterable(map(dict.values, self._parameters)),
            (buffers.get(name) for buffers, name in self._buffers),
        )
        # accelerate replaces offloaded parameters at every forward.
        return modules, [None if tensor is None or tensor.is_meta else tensor for tensor in tensors]

    def _adapter_states(self) -> list[tuple[Any, ...]]:
        return [
            (
                tuple(module._active_adapter),
                module._disable_adapters,
                tuple(module.merged_adapters),
                dict(module.scaling) if isinstance(getattr(module, "scaling", None), dict) else None,
            )
            for module in self._adapted
        ]

    def _counts(self) -> list[tuple[int, int]]:
        return [(tensor._version, tensor.data_ptr()) for tensor in self._counted]

    def _sampled(self) -> list[Tensor]:
        return [torch.cat(samples) for samples in self._samples.values()]


def _identical(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


_derived: WeakKeyDictionary[nn.Module, tuple[list[WeightWatch], bool]] = WeakKeyDictionary()


def note_derived(model: nn.Module, source: nn.Module, shares_all: bool) -> None:
    """Remember that `model` was made from `source`. `shares_all`: it holds the very tensors, so that values follow."""
    watch = [WeightWatch(source)]
    finalize(source, watch.clear).atexit = False  # the watch holds the source's layers: it goes when the source goes
    _derived[model] = watch, shares_all


def outdated(model: nn.Module) -> bool:
    """Whether the model that `model` was derived from has changed since in a way that `model` does not follow."""
    watch, shares_all = _derived.get(model, ((), True))
    return any(one.structure_changed() if shares_all else one.changed() for one in watch)
