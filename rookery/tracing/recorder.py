"""Records the PyTorch operations that a function performs, its backward pass included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SEQUENCES = (list, tuple)
UNREPEATABLE = {
    torch.Tag.data_dependent_output: "reads a value",
    torch.Tag.dynamic_output_shape: "has a result whose shape depends on values",
    torch.Tag.nondeterministic_seeded: "is random",
}
"""Operations after which the function may do something else the next time."""

Place = tuple[int, torch.Size, tuple[int, ...], torch.dtype]
"""Address and layout: identifies a tensor while all recorded tensors are alive."""


class Slot(str):
    """A placeholder for one tensor of a recorded function: its name in the generated code."""


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


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()


def place_of(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def why_unrepeatable(operation: Any, args: Any) -> str | None:
    """Return why an operation must not be recorded; None if it may."""
    if operation is torch.ops.aten.index.Tensor:
        selects = any(x.dtype in (torch.bool, torch.uint8) for x in collect(args[1], Tensor))
        tags = [torch.Tag.dynamic_output_shape] if selects else []
    else:
        tags = operation.tags
    return next((f"{operation} {UNREPEATABLE[tag]}" for tag in tags if tag in UNREPEATABLE), None)


class Recording:
    """The operations of one call of a function.

    Tensors are identified by their place in memory, because autograd hands what it saved to the
    backward pass as new Python objects. All tensors are kept alive, so that no place is reused.
    """

    def __init__(self, inputs: Iterable[Tensor]):
        super().__init__()
        self.calls: list[Call] = []
        self.tensors: dict[Slot, Tensor] = {}
        self.slots: dict[Place, Slot] = {}
        self.captured: list[Slot] = []
        """Tensors that the function uses without being given them, such as parameters."""
        self.refused: str | None = None
        """Why the function cannot be traced."""
        self.inputs: list[Slot] = []
        for tensor in inputs:
            if place_of(tensor) in self.slots:
                self.refused = "two inputs share their memory"
            self.inputs.append(self.new_slot(tensor))

    def new_slot(self, tensor: Tensor) -> Slot:
        slot = self.slots[place_of(tensor)] = Slot(f"x{len(self.tensors)}")
        self.tensors[slot] = tensor
        return slot

    def slot_of(self, tensor: Tensor) -> Slot:
        """Return the tensor's slot; a tensor that was not seen before is captured."""
        slot = self.slots.get(place_of(tensor))
        if slot is None:
            slot = self.new_slot(tensor)
            self.captured.append(slot)
        return slot

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.refused = self.refused or why_unrepeatable(operation, args)
        results = operation(*args, **kwargs)
        if self.refused:
            return results
        if operation.is_view and all(place_of(x) in self.slots for x in collect(results, Tensor)):
            # The same view again: a transposed transpose, a detached tensor, a repeated slice.
            return results
        taken = replace_leaves(args, Tensor, self.slot_of)
        named = replace_leaves(kwargs, Tensor, self.slot_of)
        made = replace_leaves(results, Tensor, self.new_slot)
        self.calls.append(Call(operation, taken, named, made))
        return results


class Recorder(Recording, TorchDispatchMode):
    """A context manager that records every operation of its thread.

    `__torch_dispatch__` is inherited: one in the body of a mode's own class would be wrapped by
    torch in a call of its compiler, which takes seconds to import.
    """
