"""`traced(function)`: repeats the recorded operations of a function instead of calling it.

An update of a small network is about sixty operations of a microsecond or two, each with several
microseconds of overhead: Python, autograd's graph, allocations. The operations are the same every
time, so they are recorded once, forward and backward, and repeated by a generated function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any

from torch import Tensor, nn

from rookery.tracing.attributes import Attributes, is_plain
from rookery.tracing.calls import split_arguments
from rookery.tracing.program import FAILURES
from rookery.tracing.recorder import Recorder
from rookery.tracing.trace import Trace, TraceTrial

CALLS_BEFORE_RECORDING = 10
"""Recording takes as long as hundreds of calls, so that rare ones are not worth it."""
MAX_KEYS = 8
MAX_BYTES = 16 << 20
"""With larger inputs the overhead is a small share, and recording keeps every result in memory."""

Key = tuple[Hashable, ...]
"""Layouts of all tensors among the arguments, the values of all other arguments, and the state of
the owner's attributes: calls with equal keys perform the same operations."""
StatusReport = Callable[[str, bool], None]


def traced(
    function: Callable[..., Any],
    modules: Callable[[], Sequence[nn.Module]] = lambda: (),
    owner: object | None = None,
    report: StatusReport = lambda status, is_warning: None,
) -> TracedFunction:
    """Return `function` with its operations recorded and repeated where that is safe.

    `function` takes and returns nested tuples, lists and dicts of tensors. `modules` returns the
    modules whose parameters it uses; they may be exchanged for others with the same shapes. `owner`
    is the object whose attributes it reads: setting one to another value makes for another trace.
    `report` is called with the status whenever that changes, and with True if it is a warning.
    """
    return TracedFunction(function, modules, owner, report)


class TracedFunction:
    """A function whose calls are repeated from traces.

    The first calls with a key are plain. One is recorded; after it, its trace is run. At the uses
    1, 2, 4, 8, ... of a trace the plain function runs too, gives the result, and is compared with
    the trace. A function that reads values, draws random numbers, comes with too many keys or
    differs from its trace is called plainly from then on, and `refused` says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        modules: Callable[[], Sequence[nn.Module]],
        owner: object | None,
        report: StatusReport,
    ):
        self.function = function
        self.modules = modules
        self.attributes = Attributes(owner)
        self.report = report
        self.traces: dict[Key, Trace] = {}
        self.counts: dict[Key, int] = {}
        """Plain calls by key."""
        self.refused: str | None = None
        self.status: str | None = None
        """How calls are computed; None before that is known."""

    def __call__(self, *args: Any) -> Any:
        if self.refused:
            return self.function(*args)
        tensors: list[Tensor] = []
        parts: list[Any] = [self.attributes.state()]
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
        elif not self.is_due(key, tensors):
            return self.function(*args)
        before = attribute_values(modules) if trace is None else []
        trial = None if trace is None else trace.run_on_copies(tensors)
        with Recorder(tensors) as recorder:
            result = self.function(*args)
        if recorder.refused:
            self.refuse(recorder.refused)
        elif trace is not None:
            self.compare(trace, trial, recorder, modules, result)
        else:
            self.add_trace(key, recorder, modules, before, result)
        return result

    def is_due(self, key: Key, tensors: Sequence[Tensor]) -> bool:
        """Count a plain call; True if its key has come up often enough to record it."""
        self.counts[key] = self.counts.get(key, 0) + 1
        if reason := self.objection(key, tensors):
            self.refuse(reason)
        return not self.refused and self.counts[key] > CALLS_BEFORE_RECORDING

    def add_trace(
        self,
        key: Key,
        recorder: Recorder,
        modules: Sequence[nn.Module],
        before: list[Any],
        result: Any,
    ) -> None:
        """Make a trace of a recorded call, before which the modules' attributes were `before`."""
        if not are_same(modules, self.modules()):
            # Another thread exchanged them in the meantime. Try again later.
            self.counts[key] = 0
        elif not are_same(before, attribute_values(modules)):
            self.refuse("it sets attributes of its modules")
        else:
            try:
                self.traces[key] = Trace(recorder, result, modules)
            except FAILURES as error:
                self.refuse(f"its operations cannot be repeated: {error}")

    def compare(
        self,
        trace: Trace,
        trial: TraceTrial | None,
        recorder: Recorder,
        modules: Sequence[nn.Module],
        result: Any,
    ) -> None:
        """Check that the trace, run as `trial`, did the same as the recorded call."""
        if not are_same(modules, self.modules()):
            # Another thread exchanged them in the meantime, so that nothing is known.
            trace.check_at = trace.uses + 1
        elif difference := trace.difference(recorder):
            self.refuse(f"a Python value that it depends on has changed: {difference}")
        elif trial is not None and trace.agrees(trial, result):
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
        opaque = [value for value in key if not is_plain(value)]
        if opaque:
            return f"an argument is a {type(opaque[0]).__name__}, which may change unnoticed"
        if len(self.counts) > MAX_KEYS:
            if sum(other[1:] == key[1:] for other in self.counts) > 1:
                return f"it depends on Python values that change: {self.attributes.changed}"
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
        self.attributes = Attributes(None)
        self.set_status(f"{'no longer' if was_traced else 'not'} traced: {reason}", was_traced)

    def set_status(self, status: str, is_warning: bool = False) -> None:
        """Report a status that is new."""
        if status != self.status:
            self.status = status
            self.report(status, is_warning)


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
