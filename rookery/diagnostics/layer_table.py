"""The layers of a network as a table: shapes, parameters, FLOPs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from rookery.runs.files import aligned

Shape = tuple[int, ...]


@dataclass
class LayerRow:
    """A layer: a module with parameters of its own, or one without submodules."""

    name: str
    """Path of the module in the network."""
    kind: str
    """Class of the module."""
    parameters: int
    """Number of its own parameters, without those of submodules."""
    input: Shape | None = None
    """Shape of the first input in its first call; None: it was not used."""
    output: Shape | None = None
    """Shape of the output of its first call."""
    flops: int = 0
    """Operations in matrix products and convolutions, two for each multiply-add."""


def layer_table(network: nn.Module, call: Callable[[], Any]) -> list[LayerRow]:
    """Return the layers of `network` in the order in which `call` uses them, then the unused
    ones."""
    recorder = LayerRecorder(network)
    recorder.record(call)
    unused = (row_of(name, module) for name, module in recorder.modules.items())
    return [
        *(row for name, row in recorder.used.items() if is_layer(recorder.modules[name], row)),
        *(row for row in unused if row.parameters and row.name not in recorder.used),
    ]


def is_layer(module: nn.Module, row: LayerRow) -> bool:
    """True if a used module computes something itself instead of only calling submodules."""
    leaf = not isinstance(module, nn.Sequential) and not list(module.children())
    return bool(row.parameters or row.flops or leaf)


def row_of(name: str, module: nn.Module) -> LayerRow:
    """Return the row of a module that has not been used yet."""
    count = sum(parameter.numel() for parameter in module.parameters(recurse=False))
    return LayerRow(name, type(module).__name__, count)


@contextmanager
def unfused() -> Iterator[None]:
    """Compute recurrent layers operation by operation instead of in one call of oneDNN, which has
    no FLOP count and is a single node of the backward graph."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration")  # raised by `flags` itself
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class LayerRecorder(TorchFunctionMode):
    """Records shapes and FLOPs of the layers of a network while it computes.

    Forward hooks see the modules that are called. Networks also use weights of a layer without
    calling it, as in `F.linear(x, layer.weight, layer.bias)`. Such operations are seen by this
    mode. An operation on tensors of one layer alone gives a tensor of that layer, such as a scaled
    weight; one with another input too is a use of the layer.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.modules = dict(network.named_modules())
        self.names = {module: name for name, module in self.modules.items()}
        self.used: dict[str, LayerRow] = {}
        self.calling: list[str] = []
        """Names of the modules that are computing, the innermost last."""
        self.owners = {
            id(parameter): name
            for name, module in self.modules.items()
            for parameter in module.parameters(recurse=False)
        }
        """Name of the layer of a parameter, or of a tensor computed from its parameters alone."""
        self.kept: list[Tensor] = []
        """Keeps these tensors alive, because `owners` has their ids."""
        self.counter = FlopCounterMode(display=False)

    def record(self, call: Callable[[], Any]) -> None:
        """Run `call` without gradients and record it."""
        with ExitStack() as stack:
            for module in self.modules.values():
                stack.callback(module.register_forward_pre_hook(self.enter).remove)
                stack.callback(module.register_forward_hook(self.leave).remove)
            for context in (torch.no_grad(), unfused(), self.counter, self):
                stack.enter_context(context)
            call()

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of every module."""
        self.calling.append(self.names[module])
        self.row(self.names[module])

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forward hook of every module."""
        self.note_shapes(self.calling.pop(), tensors_in(args), tensors_in(output))

    def row(self, name: str) -> LayerRow:
        """Return the row of a used module."""
        if name not in self.used:
            self.used[name] = row_of(name, self.modules[name])
        return self.used[name]

    def note_shapes(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Set the shapes of a module in its first use."""
        row = self.row(name)
        if row.output is None and inputs and outputs:
            row.input, row.output = tuple(inputs[0].shape), tuple(outputs[0].shape)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and add its FLOPs to a layer: that of its weights, or else the module that
        is computing."""
        before = self.counter.get_total_flops()
        output = func(*args, **(kwargs or {}))
        flops = self.counter.get_total_flops() - before
        given, outputs = tensors_in((args, kwargs)), tensors_in(output)
        owner = next((self.owners[id(x)] for x in given if id(x) in self.owners), None)
        others = [x for x in given if id(x) not in self.owners]
        if owner is not None and not others:
            self.kept += outputs
            self.owners |= {id(x): owner for x in outputs}
        elif owner is not None:
            self.row(owner).flops += flops
            if owner not in self.calling:
                self.note_shapes(owner, others, outputs)
        elif flops and self.calling:
            self.row(self.calling[-1]).flops += flops
        return output


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def table_text(rows: Sequence[LayerRow]) -> str:
    """Return the table as text, with the sums in the last line."""
    cells = [("layer", "kind", "input", "output", "parameters", "FLOPs")]
    cells += [
        (
            *(row.name, row.kind, shape_text(row.input), shape_text(row.output)),
            *(f"{row.parameters:,}", f"{row.flops:,}"),
        )
        for row in rows
    ]
    total = (f"{sum(row.parameters for row in rows):,}", f"{sum(row.flops for row in rows):,}")
    cells.append(("sum", "", "", "", *total))
    return "\n".join(aligned(cells, left=4))


def shape_text(shape: Shape | None) -> str:
    """Return a shape as text; "unused" if there is none."""
    return "unused" if shape is None else str(list(shape))
