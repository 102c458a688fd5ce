"""Copies of a model that share its weights, and how many bytes a set of models really takes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from transformers import PreTrainedModel


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of every module and of the configuration, around the very tensors (and ties) of `model`.

    Modules of the copy can be replaced, renumbered or removed without the source noticing; weights must not be
    written to.
    """
    memo = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, memo)


def _storages(model: object) -> Iterator[tuple[tuple[torch.device, int], int]]:
    """((device, address), bytes) of every storage that a model holds, with repetitions; none for a lookup."""
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            storage = tensor.untyped_storage()
            if storage.nbytes() and tensor.device.type != "meta":
                yield (tensor.device, storage.data_ptr()), storage.nbytes()


def tier_bytes(models: Sequence[object]) -> list[tuple[int, int]]:
    """(own bytes, shared bytes) of each tier: storages that it alone holds, and those that another tier holds too.

    Told apart by the address of the storage, so that tied weights and views count once. A tier that is not a torch
    module (a lookup) holds nothing: (0, 0).
    """
    held = [dict(_storages(model)) for model in models]
    holders = Counter(address for storages in held for address in storages)
    return [
        (
            sum(size for address, size in storages.items() if holders[address] == 1),
            sum(size for address, size in storages.items() if holders[address] > 1),
        )
        for storages in held
    ]
