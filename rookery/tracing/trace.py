"""The recorded operations of a function for one key, ready to run in its place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from rookery.tracing.program import FAILURES, Program, clone_all
from rookery.tracing.recorder import (
    Call,
    Recording,
    Slot,
    collect,
    place_of,
    replace_leaves,
    storage_address,
)

aten = torch.ops.aten
SHAPE_ONLY = {
    aten.full_like.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones_like.default,
    aten.zeros_like.default,
}
"""Operations whose results depend on the shapes of their inputs only."""
TOLERANCE = 1e-4
"""Difference in rounding that is accepted, relative to the largest number."""
EXTREME = 1e8
"""Larger numbers, such as the logits of illegal actions, are no measure for the others."""

Trial = tuple[Any, list[Tensor]]
"""Result of a run of a trace on copies of what it captured, and these copies after it."""


class Trace:
    """A program with the tensors that it captured, such as parameters and gradients."""

    def __init__(self, recording: Recording, result: Any, modules: Sequence[nn.Module]):
        result = replace_leaves(result, Tensor, recording.slot_of)
        self.lines = list(map(str, recording.calls))
        calls, constants = fold_constants(recording.calls, recording.tensors)
        captured = [*recording.captured, *constants]
        self.captured = [recording.tensors[slot].detach() for slot in captured]
        self.program = Program(recording.inputs, captured, calls, result, recording.tensors)
        self.run = self.program.bind(self.captured)
        self.modules = tuple(modules)
        names = {place_of(tensor): name for name, tensor in named_tensors(modules).items()}
        self.names = [names.get(place_of(tensor)) for tensor in self.captured]
        """Names of the captured tensors that belong to the modules, else None."""
        self.anchors = anchors(modules)
        self.uses = 0
        self.check_at = 1
        """The use at which it is next compared with the function."""
        self.trusted = False
        """True once it has agreed with the function."""
        self.doubted = False
        """True if its results differed in the last comparison."""

    def follow(self, modules: Sequence[nn.Module]) -> None:
        """Capture the tensors of these modules instead, if they were exchanged or moved."""
        if all(map(is_, modules, self.modules)) and all(
            tensor.data_ptr() == address for tensor, address in self.anchors
        ):
            return
        tensors = named_tensors(modules)
        self.captured = [
            tensor if name is None else tensors[name].detach()
            for tensor, name in zip(self.captured, self.names, strict=True)
        ]
        self.run = self.program.bind(self.captured)
        self.modules, self.anchors = tuple(modules), anchors(modules)

    def run_on_copies(self, inputs: Sequence[Tensor]) -> Trial | None:
        """Run the trace without side effects on what it captured; None if it fails."""
        captured = clone_all(self.captured)
        try:
            result = self.program.bind(captured)(*clone_all(inputs))
        except FAILURES:
            return None
        return result, captured

    def agrees(self, trial: Trial, inputs: Sequence[Tensor], result: Any) -> bool:
        """True if a trial had the result and the side effects of the function, which ran after it
        with the same inputs."""
        tried, captured = trial
        if structure(tried) != structure(result):
            return False
        ours = (*collect(tried, Tensor), *captured)
        theirs = (*collect(result, Tensor), *self.captured)
        with torch.no_grad():
            known = (*inputs, *theirs)
            scale = max(map(magnitude, known), default=0.0) if self.trusted else None
            return all(is_close(a, b, scale) for a, b in zip(ours, theirs, strict=True))

    def difference(self, recording: Recording) -> str | None:
        """Return how a later recording differs in its operations or captured tensors, if it does.
        This is exact, where results differ in rounding and may agree by chance."""
        lines = map(str, recording.calls)
        for ours, theirs in zip_longest(self.lines, lines, fillvalue="nothing"):
            if ours != theirs:
                return f"traced {ours}, now {theirs}"
        captured = [recording.tensors[slot].detach() for slot in recording.captured]
        if not all(map(is_same, self.captured, captured)):
            return "it uses other tensors than when it was traced"
        return None


def named_tensors(modules: Sequence[nn.Module]) -> dict[tuple[int, str], Tensor]:
    """Return the parameters and buffers of all modules."""
    return {
        (number, name): tensor
        for number, module in enumerate(modules)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def anchors(modules: Sequence[nn.Module]) -> list[tuple[Tensor, int]]:
    """Return the first parameter of each module and its address: parameters move together."""
    first = (next(module.parameters(), None) for module in modules)
    return [(x, x.data_ptr()) for x in first if x is not None]


def is_same(ours: Tensor, theirs: Tensor) -> bool:
    """True if both have the same place in memory, or are constants with the same values."""
    if place_of(ours) == place_of(theirs):
        return True
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def structure(tree: Any) -> str:
    """Return a description of a tree without the values in its tensors."""
    return repr(replace_leaves(tree, Tensor, type))


def is_close(ours: Tensor, theirs: Tensor, scale: float | None) -> bool:
    """True if two tensors are equal up to rounding.

    The tolerance is relative to the largest number of the tensor or, if `scale` is given, to that.
    With a scale, integers may differ: after rounding, another of two equal numbers may be the
    largest. This accepts the differences of nearly equal numbers that a trained agent computes.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if not ours.is_floating_point():
        return scale is not None or torch.equal(ours, theirs)
    allowed = TOLERANCE * (magnitude(theirs) if scale is None else scale)
    return torch.allclose(ours, theirs, rtol=TOLERANCE, atol=allowed, equal_nan=True)


def magnitude(tensor: Tensor) -> float:
    """Return the largest absolute value that is not extreme; 0 if there is none."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    sizes = tensor.abs()
    return float(torch.where(sizes < EXTREME, sizes, 0).max())


def fold_constants(
    calls: Sequence[Call], tensors: dict[Slot, Tensor]
) -> tuple[list[Call], list[Slot]]:
    """Return the calls without those whose result is the same in every run, and the slots of these
    results. Results that are written to later do not count."""
    written = {storage_address(tensors[slot]) for call in calls for slot in call.written}
    constants: dict[Slot, None] = {}
    left = []
    for call in calls:
        known = call.operation in SHAPE_ONLY or all(slot in constants for slot in call.taken)
        address = storage_address(tensors[call.made[0]]) if len(call.made) == 1 else None
        if known and address is not None and address not in written:
            constants[call.made[0]] = None
        else:
            left.append(call)
    return left, list(constants)
