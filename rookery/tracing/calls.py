"""Recorded operations as data: the operation, the tensors it takes and the tensors it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

SEQUENCES = (list, tuple)


@dataclass(frozen=True)
class Slot:
    """A placeholder for one tensor of a recorded function."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


class Call(NamedTuple):
    """One operation with its arguments and results; slots stand for tensors."""

    operation: Any
    args: Any
    kwargs: dict[str, Any]
    results: Any

    def __str__(self) -> str:
        return f"{self.results} = {self.operation}{self.args}{self.kwargs or ''}"

    @property
    def taken(self) -> list[Slot]:
        """The tensors among the arguments."""
        return collect((self.args, self.kwargs), Slot)

    @property
    def made(self) -> list[Slot]:
        """The tensors among the results."""
        return collect(self.results, Slot)

    @property
    def written(self) -> list[Slot]:
        """The tensors among the arguments that the operation writes to."""
        found: list[Slot] = []
        for i, argument in enumerate(self.operation._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = self.args[i] if i < len(self.args) else self.kwargs.get(argument.name)
                found += collect(value, Slot)
        return found


def is_branch(tree: Any) -> bool:
    """True for the lists and tuples that are searched for tensors; a shape is a leaf."""
    return isinstance(tree, SEQUENCES) and not isinstance(tree, torch.Size)


def replace_leaves(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return the nested lists, tuples and dicts of `tree` with `function` applied to every leaf
    of one type."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: replace_leaves(value, kind, function) for key, value in tree.items()}
    if is_branch(tree):
        parts = [replace_leaves(value, kind, function) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def collect(tree: Any, kind: type) -> list[Any]:
    """Return the leaves of one type, in order."""
    found: list[Any] = []
    replace_leaves(tree, kind, found.append)
    return found


def split_arguments(tree: Any, tensors: list[Tensor], key: list[Any]) -> None:
    """Append the tensors of `tree` to `tensors`, and everything else that distinguishes it from
    other trees to `key`: types, lengths, names, Python values and the layouts of the tensors."""
    kind = type(tree)
    if kind is Tensor or isinstance(tree, Tensor):
        tensors.append(tree)
        key += (tree.shape, tree.stride(), tree.dtype, tree.requires_grad)
        return
    key.append(kind)
    if isinstance(tree, SEQUENCES) and kind is not torch.Size:
        key.append(len(tree))
        for part in tree:
            split_arguments(part, tensors, key)
    elif isinstance(tree, dict):
        key.append(len(tree))
        key += tree
        for part in tree.values():
            split_arguments(part, tensors, key)
    else:
        key.append(tree)


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()


def clone_all(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return copies that share memory with each other where the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        copies.append(copy.set_(storages[storage.data_ptr()], *layout))
    return copies
