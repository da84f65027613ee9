"""`TracedFunction`: repeats the recorded operations of a function instead of calling it.

An update of a small network is about sixty operations of a microsecond or two, each with several
microseconds of overhead: Python, autograd's graph, allocations. The operations are the same every
time, so they are recorded once, forward and backward, and repeated by a generated function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.tracing.program import FAILURES
from rookery.tracing.recorder import SEQUENCES, Recorder
from rookery.tracing.trace import Trace, Trial

CALLS_BEFORE_RECORDING = 10
"""Recording takes as long as hundreds of calls, so that rare ones are not worth it."""
MAX_KEYS = 8
MAX_BYTES = 16 << 20
"""With larger inputs the overhead is a small share, and recording keeps every result in memory."""

SCALARS = (
    *(int, float, complex, str, bytes, type(None), type, Enum, np.generic),
    *(torch.dtype, torch.device, torch.layout),
)
"""Types whose values cannot change."""

Key = tuple[Any, ...]
"""The values of the owner's attributes, the layouts of all tensors among the arguments and the
values of all other arguments: calls with equal keys perform the same operations."""


class TracedFunction:
    """A function whose calls are repeated from traces where that is safe.

    `function` takes and returns nested tuples, lists and dicts of tensors. `modules` returns the
    modules whose parameters it uses; they may be exchanged for others with the same shapes. `owner`
    is the object whose attributes it reads: setting one to another value makes for another trace.
    `report` is called with the status whenever that changes, and with True if it is a warning.

    The first calls with a key are plain. One is recorded; after it, its trace is run. At the uses
    1, 2, 4, 8, ... of a trace the plain function runs too, gives the result, and is compared with
    the trace. A function that reads values, draws random numbers, comes with too many keys or
    differs from its trace is called plainly from then on, and `refused` says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        modules: Callable[[], Sequence[nn.Module]] = lambda: (),
        owner: object | None = None,
        report: Callable[[str, bool], None] = lambda status, is_warning: None,
    ):
        self.function = function
        self.modules = modules
        self.owner = owner
        self.report = report
        self.last_values: dict[str, Any] = {}
        """The owner's attributes when `owner_values` last looked at them."""
        self.values: frozenset[tuple[str, Any]] = frozenset()
        self.kept: dict[int, Any] = {}
        """Objects that are known by their ids: kept, so that no other object gets the same id."""
        self.traces: dict[Key, Trace] = {}
        self.counts: dict[Key, int] = {}
        """Plain calls by key."""
        self.refused: str | None = None
        self.status: str | None = None
        """Way in which calls are computed, in words; None before that is known."""

    def __call__(self, *args: Any) -> Any:
        if self.refused:
            return self.function(*args)
        tensors: list[Tensor] = []
        parts: list[Any] = [self.owner_values()]
        split_arguments(args, tensors, parts)
        key = tuple(parts)
        try:
            trace = self.traces.get(key)
        except TypeError as error:
            self.refuse(f"an argument cannot be compared with others: {error}")
            return self.function(*args)
        modules = self.modules()
        if trace is not None:
            trace.follow(modules)
            trace.uses += 1
            if trace.uses < trace.check_at:
                return trace.run(*tensors)
        else:
            self.counts[key] = self.counts.get(key, 0) + 1
            if reason := self.objection(key, tensors):
                self.refuse(reason)
            if self.refused or self.counts[key] <= CALLS_BEFORE_RECORDING:
                return self.function(*args)
        before = attribute_values(modules) if trace is None else []
        trial = None if trace is None else trace.run_on_copies(tensors)
        with Recorder(tensors) as recorder:
            result = self.function(*args)
        if recorder.refused:
            self.refuse(recorder.refused)
        elif not are_same(modules, self.modules()):
            # Another thread exchanged them in the meantime, so that nothing is known.
            if trace is None:
                self.counts[key] = 0
            else:
                trace.check_at = trace.uses + 1
        elif trace is not None:
            self.compare(trace, trial, recorder, tensors, result)
        elif not are_same(before, attribute_values(modules)):
            self.refuse("it sets attributes of its modules")
        else:
            try:
                self.traces[key] = Trace(recorder, result, modules)
            except FAILURES as error:
                self.refuse(f"its operations cannot be repeated: {error}")
        return result

    def owner_values(self) -> frozenset[tuple[str, Any]]:
        """Return the names of the owner's attributes, each with the `repr` or the id of its value.

        Plain values are equal if their `repr` is, other objects only to themselves: a change inside
        a list is not detected. Modules do not count, nor do cached properties, which follow from
        the other attributes.
        """
        last, now = self.last_values, {} if self.owner is None else vars(self.owner)
        if len(now) != len(last) or not all(map(is_, now.values(), last.values())):
            self.last_values = now.copy()
            counted = {
                name: value
                for name, value in self.last_values.items()
                if not isinstance(value, nn.Module)
                and not isinstance(getattr(type(self.owner), name, None), cached_property)
            }
            self.kept |= {id(value): value for value in counted.values() if not is_plain(value)}
            self.values = frozenset(
                (name, repr(value) if is_plain(value) else id(value))
                for name, value in counted.items()
            )
        return self.values

    def compare(
        self,
        trace: Trace,
        trial: Trial | None,
        recorder: Recorder,
        inputs: Sequence[Tensor],
        result: Any,
    ) -> None:
        """Check that the trace, run as `trial`, did the same as the recorded call."""
        if difference := trace.difference(recorder):
            self.refuse(f"a Python value that it depends on has changed: {difference}")
        elif trial is not None and trace.agrees(trial, inputs, result):
            trace.trusted, trace.doubted = True, False
            trace.check_at = 2 ** trace.uses.bit_length()
            traces = [trace for trace in self.traces.values() if trace.trusted]
            engines = sorted(set().union(*(trace.program.engines for trace in traces)))
            self.set_status(f"traced, run by {' and '.join(engines)}")
        elif trace.doubted:
            self.refuse("the trace gives other results than the function")
        else:
            # Rounding may have decided which of two numbers is larger.
            trace.doubted = True
            trace.check_at = trace.uses + 1

    def objection(self, key: Key, tensors: Sequence[Tensor]) -> str | None:
        """Return why calls with this key must not be traced; None if they may."""
        opaque = [value for value in key[1:] if not is_plain(value)]
        if opaque:
            return f"an argument is a {type(opaque[0]).__name__}, which may change unnoticed"
        if len(self.counts) > MAX_KEYS:
            values = [other[0] for other in self.counts if other[1:] == key[1:]]
            if len(values) > 1:
                names = sorted({name for name, _ in values[-1] ^ values[-2]})
                return f"it depends on Python values that change: {', '.join(names)}"
            return "there are too many shapes or values of arguments"
        if sum(x.nbytes for x in tensors) > MAX_BYTES:
            return f"the inputs are larger than {MAX_BYTES >> 20} MB"
        return None

    def refuse(self, reason: str) -> None:
        """Call the function plainly from now on."""
        was_traced = any(trace.trusted for trace in self.traces.values())
        self.refused = reason
        self.traces.clear()
        self.counts.clear()
        self.kept.clear()
        self.set_status(f"{'no longer' if was_traced else 'not'} traced: {reason}", was_traced)

    def set_status(self, status: str, is_warning: bool = False) -> None:
        """Report a status that is new."""
        if status != self.status:
            self.status = status
            self.report(status, is_warning)


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


def is_plain(value: Any) -> bool:
    """True if a value cannot change and is fully described by its `repr`."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(is_plain(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, SCALARS)


def are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """True if both hold the same objects in the same order."""
    return len(one) == len(other) and all(map(is_, one, other))


def attribute_values(modules: Sequence[nn.Module]) -> list[Any]:
    """Return every attribute, parameter and buffer of the modules and their submodules."""
    return [
        value
        for module in modules
        for part in module.modules()
        for value in (
            *vars(part).values(),
            *part.parameters(recurse=False),
            *part.buffers(recurse=False),
        )
    ]
