"""A list of operations on small tensors, run by NumPy on memory that is set aside once.

Of an operation on a few hundred numbers torch spends most on looking up what to do, on a tensor for
the result, and on views. Here every result has its place beforehand, views are taken once, and what
is left is one call each of NumPy, which asks for less.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.tracing.calls import (
    Call,
    Slot,
    cloned,
    leaves,
    made,
    memory,
    replaced,
    takes,
    writes,
)
from rookery.tracing.numpy_operations import TRANSLATIONS, Step, Untranslated

SMALL = 1 << 14
"""Numbers in the largest tensor for which this pays."""
DTYPES = {
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


class Plan(NamedTuple):
    """What is to be done."""

    inputs: Sequence[Slot]
    met: Sequence[Slot]
    """Tensors that are there already."""
    calls: Sequence[Call]
    outputs: Sequence[Slot]
    examples: Sequence[Tensor]
    """The tensors of one run, by slot."""

    def pays(self) -> bool:
        """Whether a program can do it, and should."""
        slots = self.used().union(self.inputs, self.met)
        if any(slot.index >= len(self.examples) or not fits(self.example(slot)) for slot in slots):
            return False
        changed = {memory(self.example(slot)) for call in self.calls for slot in writes(call)}
        if any(memory(self.example(slot)) in changed for slot in self.inputs):
            return False
        copies = cloned([self.example(slot).detach() for slot in (*self.inputs, *self.met)])
        try:
            Program(self, copies[len(self.inputs) :])(copies[: len(self.inputs)])
        except (Untranslated, ValueError, TypeError, ArithmeticError, RuntimeError):
            # NumPy finds some things wrong only when it comes to them.
            return False
        return True

    def used(self) -> set[Slot]:
        """What the calls take and make, and what is asked for."""
        found = {slot for call in self.calls for slot in (*takes(call), *made(call))}
        return found.union(self.outputs)

    def example(self, slot: Slot) -> Tensor:
        """The tensor of a slot."""
        return self.examples[slot.index]

    def is_view(self, call: Call) -> bool:
        """Whether a call gives another view of what it is given."""
        given = {memory(self.example(slot)) for slot in takes(call)}
        return any(memory(self.example(slot)) in given for slot in made(call))


class Program:
    """A plan carried out on memory of its own, and on the tensors `met`."""

    @torch.inference_mode(False)
    def __init__(self, plan: Plan, met: Sequence[Tensor]):
        self.plan = plan
        self.tensors = dict(zip(plan.met, met, strict=True))
        self.tensors |= {slot: beside(plan.example(slot)) for slot in plan.inputs}
        used = plan.used()
        self.inputs = [
            (i, self.tensors[slot].numpy()) for i, slot in enumerate(plan.inputs) if slot in used
        ]
        self.steps = [step for call in plan.calls for step in self.translated(call)]
        self.outputs = [self.tensors[slot].numpy() for slot in plan.outputs]
        self.turn = threading.Lock()

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the calls make of the inputs."""
        with self.turn, np.errstate(all="ignore"):
            for i, own in self.inputs:
                np.copyto(own, inputs[i].numpy())
            for step in self.steps:
                step()
            return [torch.from_numpy(array.copy()) for array in self.outputs]

    def translated(self, call: Call) -> list[Step]:
        """The steps of a call; its results get their places."""
        args, kwargs = replaced((call.args, call.kwargs), Slot, self.tensors.__getitem__)
        changed = writes(call)
        if not changed and self.plan.is_view(call):
            views = leaves(call.operation(*args, **kwargs), Tensor)
            self.tensors.update(zip(made(call), views, strict=True))
            return []
        translate = TRANSLATIONS.get(call.operation)
        if translate is None or not isinstance(call.results, Slot):
            raise Untranslated(str(call.operation))
        result = self.tensors[changed[0]] if changed else beside(self.plan.example(call.results))
        self.tensors[call.results] = result
        args, kwargs = replaced((args, kwargs), Tensor, Tensor.numpy)
        try:
            inspect.signature(translate).bind(result.numpy(), *args, **kwargs)
        except TypeError as error:
            raise Untranslated(f"{call.operation}: {error}") from None
        return list(translate(result.numpy(), *args, **kwargs))


def fits(tensor: Tensor) -> bool:
    """Whether a tensor is small, and of a type that NumPy has."""
    return 0 < tensor.numel() <= SMALL and tensor.dtype in DTYPES


def beside(tensor: Tensor) -> Tensor:
    """A tensor of the same kind with memory of its own."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
