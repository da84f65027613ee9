"""A list of operations on tensors as one TorchScript function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rookery.tracing.calls import Call, Slot

MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
"""As TorchScript has them."""


def script(
    inputs: Sequence[Slot], calls: Iterable[Call], outputs: Sequence[Slot]
) -> Callable[..., tuple[Tensor, ...]]:
    """What the calls make of the inputs, as one function."""
    builder = Builder()
    for slot in inputs:
        builder.values[slot] = builder.graph.addInput(f"x{slot.index}")
    for call in calls:
        builder.add(call)
    values = [builder.values[slot] for slot in outputs]
    whole = builder.node("prim::TupleConstruct", values, 1)
    whole.output().setType(torch._C.TupleType([value.type() for value in values]))
    builder.graph.registerOutput(whole.output())
    return partial(torch._C._create_function_from_graph("run", builder.graph), 1.0)


class Builder:
    """A graph in the making."""

    def __init__(self) -> None:
        self.graph: Any = torch._C.Graph()
        self.values: dict[Slot, Any] = {}
        self.one: Any = self.graph.addInput("one")
        """A factor that is not known to be 1 before the graph is run."""
        self.one.setType(torch._C.FloatType.get())

    def node(self, kind: str, inputs: Sequence[Any], outputs: int) -> Any:
        """A node that follows those there are."""
        return self.graph.insertNode(self.graph.create(kind, inputs, outputs))

    def add(self, call: Call) -> None:
        """Add an operation."""
        schema = call.operation._schema
        rest = schema.arguments[len(call.args) :]
        given = [*call.args, *(call.kwargs.get(a.name, a.default_value) for a in rest)]
        inputs = [self.value(x, a.type) for x, a in zip(given, schema.arguments, strict=True)]
        if schema.name == "aten::addmm":
            # With factors known to be 1, TorchScript makes two slower operations of it.
            inputs[3:] = [
                self.one if x == 1 else v for x, v in zip(given[3:], inputs[3:], strict=True)
            ]
        count = len(schema.returns)
        results = call.results if count > 1 else [call.results][:count]
        node = self.node(schema.name, inputs, count)
        for value, result in zip(node.outputs(), results, strict=True):
            if isinstance(result, Slot):
                self.values[result] = value
            elif isinstance(result, list | tuple):
                value.setType(torch._C.ListType.ofTensors())
                parts = self.node("prim::ListUnpack", [value], len(result)).outputs()
                self.values.update(zip(result, parts, strict=True))

    def value(self, given: Any, kind: Any) -> Any:
        """What stands for an argument of this kind in the graph."""
        if isinstance(given, Slot):
            return self.values[given]
        if isinstance(given, list | tuple) and not is_numbers(given):
            kind = kind.getElementType() if kind.kind() == "OptionalType" else kind
            made = self.node("prim::ListConstruct", [self.value(x, kind) for x in given], 1)
            made.output().setType(kind)
            return made.output()
        return self.graph.insertConstant(constant(given, str(kind)))


def is_numbers(given: Sequence[Any]) -> bool:
    """Whether there is something, and all of it numbers."""
    return bool(given) and all(isinstance(x, bool | int | float) for x in given)


def constant(given: Any, kind: str) -> Any:
    """A number, a word, or a list of numbers, as an argument of this kind."""
    if isinstance(given, torch.memory_format):
        return MEMORY_FORMATS[given]
    if isinstance(given, tuple):
        return list(given)
    # TorchScript takes neither true and false for numbers nor whole numbers for others.
    if isinstance(given, bool) and "bool" not in kind:
        return int(given)
    if isinstance(given, int) and "float" in kind:
        return float(given)
    return given
