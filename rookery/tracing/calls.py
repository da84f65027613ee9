"""Operations on tensors as data: what is called, on what, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

BRANCHES = (list, tuple)


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


class Call(NamedTuple):
    """One operation: its arguments, with slots for tensors, and the slots of its results."""

    operation: Any
    args: Any
    kwargs: dict[str, Any]
    results: Any

    def __str__(self) -> str:
        return f"{self.results} = {self.operation}{self.args}{self.kwargs or ''}"


def replaced(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """`tree` with `function` over its leaves of one kind; lists, tuples and dicts are branches."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: replaced(value, kind, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        parts = [replaced(value, kind, function) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def leaves(tree: Any, kind: type) -> list[Any]:
    """The leaves of one kind, in order."""
    found: list[Any] = []
    gather(tree, kind, found)
    return found


def gather(tree: Any, kind: type, found: list[Any]) -> None:
    """Append the leaves of one kind to `found`."""
    if isinstance(tree, kind):
        found.append(tree)
    elif isinstance(tree, list | tuple):
        for part in tree:
            gather(part, kind, found)
    elif isinstance(tree, dict):
        for part in tree.values():
            gather(part, kind, found)


def spread(tree: Any, tensors: list[Tensor], key: list[Any]) -> None:
    """Append the tree's tensors to `tensors`, and to `key` what tells it from other trees: types,
    lengths, names and values of all that is not a tensor, and the layout of what is."""
    kind = type(tree)
    if kind is Tensor or isinstance(tree, Tensor):
        tensors.append(tree)
        key += (tree.shape, tree.stride(), tree.dtype)
        return
    key.append(kind)
    if isinstance(tree, BRANCHES) and kind is not torch.Size:
        key.append(len(tree))
        for part in tree:
            spread(part, tensors, key)
    elif isinstance(tree, dict):
        key.append(len(tree))
        key += tree
        for part in tree.values():
            spread(part, tensors, key)
    else:
        key.append(tree)


def takes(call: Call) -> list[Slot]:
    """The tensors that an operation is given."""
    return leaves((call.args, call.kwargs), Slot)


def made(call: Call) -> list[Slot]:
    """The tensors that it gives."""
    return leaves(call.results, Slot)


def writes(call: Call) -> list[Slot]:
    """Those of the first that it changes."""
    found: list[Slot] = []
    for i, argument in enumerate(call.operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += leaves(call.args[i] if i < len(call.args) else call.kwargs, Slot)
    return found


def memory(tensor: Tensor) -> int:
    """Where a tensor's storage is: views of one tensor share it."""
    return tensor.untyped_storage().data_ptr()


def cloned(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies that share memory with each other where the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        where = tensor.storage_offset(), tensor.shape, tensor.stride()
        copies.append(copy.set_(storages[storage.data_ptr()], *where))
    return copies
