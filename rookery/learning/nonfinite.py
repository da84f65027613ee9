"""Find the first operation that turns finite numbers into NaN or infinite ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rookery.data.steps import Batch
from rookery.data.tree import tree_leaves

FILLS = ("where", "masked_fill", "full", "scalar_tensor", "fill")
"""Operations that write an infinity on purpose, as for actions that are not legal."""


class NonFiniteFinder(TorchDispatchMode):
    """Notes the first operation with a NaN, and the first with an infinity, in its output and none
    in its inputs."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.names = {module: name for name, module in network.named_modules()}
        self.calling: list[str] = []
        """Names of the modules that are computing, the innermost last."""
        self.phase = "loss"
        self.first_nan: str | None = None
        self.first_infinity: str | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all operations in the body, and which module computes."""
        with ExitStack() as stack:
            for module in self.names:
                stack.callback(module.register_forward_pre_hook(self.enter).remove)
                stack.callback(module.register_forward_hook(self.leave).remove)
            stack.enter_context(self)
            yield

    def enter(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook of every module."""
        self.calling.append(self.names[module])

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of every module."""
        self.calling.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation and look at its numbers."""
        given = floats_in((args, kwargs))
        nan_before = any(bool(x.isnan().any()) for x in given)
        infinite_before = any(bool(x.isinf().any()) for x in given)
        output = func(*args, **(kwargs or {}))
        made = floats_in(output)
        if self.first_nan is None and not nan_before and any(bool(x.isnan().any()) for x in made):
            self.first_nan = self.place(func)
        is_cause = not (infinite_before or nan_before or any(f in str(func) for f in FILLS))
        made_infinity = is_cause and any(bool(x.isinf().any()) for x in made)
        if self.first_infinity is None and made_infinity:
            self.first_infinity = self.place(func)
        return output

    def place(self, func: Any) -> str:
        """Return the operation and where it stands."""
        name = str(func).removeprefix("aten.").partition(".")[0]
        if self.phase == "backward":
            return f"{name} in the backward pass"
        layer = next((name for name in reversed(self.calling) if name), None)
        return f"{name} in the loss" if layer is None else f"{name} in the layer {layer}"


def floats_in(value: Any) -> list[Tensor]:
    """Return the tensors of floating-point numbers in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in floats_in(part)]
    return [value] if isinstance(value, Tensor) and value.is_floating_point() else []


def parts_not_finite(batch: Batch) -> list[str]:
    """Return the names of a batch's parts that contain NaN or infinite numbers."""
    parts = batch.steps._asdict() | {"state": batch.state, "weight": batch.weight}
    parts |= parts.pop("extra")
    return [
        name
        for name, part in parts.items()
        if part is not None
        and any(x.is_floating_point() and not bool(x.isfinite().all()) for x in tree_leaves(part))
    ]


def locate(network: nn.Module, batch: Batch, loss: Callable[[], Tensor]) -> str:
    """Return in words where NaN or infinite numbers first appear in a loss or its gradient."""
    if parts := parts_not_finite(batch):
        return f"the batch's {' and '.join(parts)} are not finite"
    for name, parameter in network.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the weights {name} are not finite"
    finder = NonFiniteFinder(network)
    with finder.watching(), torch.enable_grad():
        total = loss()
        finder.phase = "backward"
        total.backward()
    if finder.first_nan is not None:
        return f"the first NaN came from {finder.first_nan}"
    if finder.first_infinity is not None:
        return f"the first infinite number came from {finder.first_infinity}"
    return "computed again on this rank, the numbers are finite"
