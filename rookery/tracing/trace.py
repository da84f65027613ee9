"""The recorded operations of a function for one key, ready to run in its place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rookery.tracing import simplify
from rookery.tracing.calls import Slot, clone_all, collect, replace_leaves
from rookery.tracing.program import FAILURES, Program
from rookery.tracing.recorder import Recording, place_of

TOLERANCE = 1e-4
"""Difference in rounding that is accepted, relative to the largest number."""
EXTREME = 1e8
"""Larger numbers, such as the logits of illegal actions, are no measure for the others."""


class TraceTrial(NamedTuple):
    """A run of a trace on copies of what it captured."""

    inputs: Sequence[Tensor]
    result: Any
    captured: list[Tensor]
    """The copies, after the run."""


class Trace:
    """A program with the tensors that it captured, such as parameters and gradients."""

    def __init__(self, recording: Recording, result: Any, modules: Sequence[nn.Module]):
        result = replace_leaves(result, Tensor, recording.slot_of)
        self.lines = recording.lines()
        calls, constants = simplify.fold_constants(recording.calls, recording.tensors)
        for rewrite in simplify.PASSES:
            calls = rewrite(calls, recording.tensors, collect(result, Slot))
        captured = [*recording.captured, *constants]
        self.captured = [recording.tensors[slot.index].detach() for slot in captured]
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

    def run_on_copies(self, inputs: Sequence[Tensor]) -> TraceTrial | None:
        """Run the trace without side effects on what it captured; None if it fails."""
        captured = clone_all(self.captured)
        try:
            result = self.program.bind(captured)(*clone_all(inputs))
        except FAILURES:
            return None
        return TraceTrial(inputs, result, captured)

    def agrees(self, trial: TraceTrial, result: Any) -> bool:
        """True if a trial had the result and the side effects of the function, which ran after it
        with the same inputs."""
        if structure(trial.result) != structure(result):
            return False
        pairs = zip(
            (*collect(trial.result, Tensor), *trial.captured),
            (*collect(result, Tensor), *self.captured),
            strict=True,
        )
        with torch.no_grad():
            known = (*trial.inputs, *collect(result, Tensor), *self.captured)
            scale = max(map(magnitude, known), default=0.0) if self.trusted else None
            return all(is_close(ours, theirs, scale) for ours, theirs in pairs)

    def difference(self, recording: Recording) -> str | None:
        """Return how a later recording differs in its operations or captured tensors, if it does.
        This is exact, where results differ in rounding and may agree by chance."""
        for ours, theirs in zip_longest(self.lines, recording.lines(), fillvalue="nothing"):
            if ours != theirs:
                return f"traced {ours}, now {theirs}"
        if not all(map(is_same, self.captured, recording.captured_tensors())):
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
