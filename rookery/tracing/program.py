"""Recorded calls as one generated Python function.

A small PyTorch operation spends most of its time on finding its kernel, on allocating its result
and on views. The generated function avoids that: memory for results is set aside once, views are
taken once, and NumPy, which has less overhead per call, computes small tensors. PyTorch computes
large ones, and operations that have no translation to NumPy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rookery.tracing.numpy_operations import TRANSLATIONS, Step, Untranslated
from rookery.tracing.recorder import (
    Call,
    Slot,
    collect,
    is_branch,
    replace_leaves,
    storage_address,
)

aten = torch.ops.aten
SET_ASIDE = 1 << 16
"""Numbers in the largest tensor for which memory is set aside: the memory of all of them together
should stay in the processor's cache."""
COPIED = 1 << 14
"""Numbers in the largest result of PyTorch that is copied into memory set aside for NumPy."""
ARITHMETIC, FUNCTIONS = 1 << 14, 1 << 10
"""Numbers in a tensor above which PyTorch is faster than NumPy."""
OUT_VARIANTS: dict[Any, tuple[Callable, str, int]] = {
    aten.add.Tensor: (torch.add, "out", ARITHMETIC),
    aten.mul_.Tensor: (torch.mul, "out", ARITHMETIC),
    aten.sub_.Tensor: (torch.sub, "out", ARITHMETIC),
    aten.relu.default: (partial(torch.clamp, min=0), "out", ARITHMETIC),
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, "grad_input", ARITHMETIC),
    aten.tanh_backward.default: (aten.tanh_backward.grad_input, "grad_input", ARITHMETIC),
    aten.mm.default: (torch.mm, "out", ARITHMETIC),
    aten.addmm.default: (torch.addmm, "out", ARITHMETIC),
    aten.exp.default: (torch.exp, "out", FUNCTIONS),
    aten.sigmoid_.default: (torch.sigmoid, "out", FUNCTIONS),
    aten.tanh.default: (torch.tanh, "out", ARITHMETIC),
    aten._log_softmax.default: (aten._log_softmax.out, "out", FUNCTIONS),
    aten._log_softmax_backward_data.default: (
        aten._log_softmax_backward_data.out,
        "out",
        FUNCTIONS,
    ),
}
"""PyTorch functions that write to a given tensor: its name among the arguments, and the size from
which on they are faster than NumPy."""
NUMPY_DTYPES = {
    *(torch.float32, torch.float64, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
}
FAILURES = (Untranslated, ValueError, TypeError, ArithmeticError, RuntimeError, IndexError)
"""Raised by translations that do not fit their arguments."""

Run = Callable[..., Any]
"""From the input tensors to the result of the recorded function."""


class Program:
    """The plan of a generated function. `bind` makes the function for given captured tensors."""

    def __init__(
        self,
        inputs: Sequence[Slot],
        captured: Sequence[Slot],
        calls: Sequence[Call],
        result: Any,
        tensors: dict[Slot, Tensor],
    ):
        """`result` is the recorded function's result with slots for its tensors; `tensors` are
        those of the recorded run."""
        self.inputs, self.captured, self.calls, self.result = inputs, captured, calls, result
        self.examples = tensors
        self.outputs = list(dict.fromkeys(collect(result, Slot)))
        self.aliases = [
            not {self.address(slot) for slot in call.taken}.isdisjoint(map(self.address, call.made))
            for call in calls
        ]
        """True for the calls of which a result shares memory with an argument."""
        self.last_use: dict[Slot, int] = {}
        for number, call in enumerate(calls):
            self.last_use |= dict.fromkeys((*call.taken, *call.made), number)
        self.last_use |= dict.fromkeys(self.outputs, len(calls))
        written = {self.address(slot) for call in calls for slot in call.written}
        self.copied = [
            slot
            for slot in inputs
            if slot in self.last_use
            and self.fits(slot)
            and not self.examples[slot].requires_grad
            and self.address(slot) not in written
        ]
        """Inputs that are copied into memory set aside."""
        self.by_torch: set[int] = set()
        """Numbers of the calls that are left to PyTorch, found in a trial on copies."""
        trial = Binding(self, clone_all(tensors[slot].detach() for slot in captured), True)
        self.engines = trial.engines
        self.examples = {slot: self.examples[slot] for slot in trial.set_aside}

    def bind(self, captured: Sequence[Tensor]) -> Run:
        """Return the function, with these tensors as the captured ones."""
        return Binding(self, captured).function

    def address(self, slot: Slot) -> int:
        return storage_address(self.examples[slot])

    def fits(self, slot: Slot) -> bool:
        """True if NumPy has the tensor's type and memory may be set aside for it."""
        tensor = self.examples[slot]
        return tensor.dtype in NUMPY_DTYPES and 0 < tensor.numel() <= SET_ASIDE


class Binding:
    """Source code and variables of a generated function.

    A slot is either static, with the same tensor in every run (captured tensors, memory set aside,
    and views of both), or a local variable of the function.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, program: Program, captured: Sequence[Tensor], is_trial: bool = False):
        self.program = program
        self.is_trial = is_trial
        self.static = dict(zip(program.captured, captured, strict=True))
        self.set_aside: list[Slot] = []
        self.engines: set[str] = set()
        self.variables: dict[str, Any] = {
            "lock": threading.Lock(),
            "errstate": np.errstate,
            "inference_mode": torch.inference_mode,
            "copyto": np.copyto,
            "from_numpy": torch.from_numpy,
        }
        self.lines: list[str] = []
        for slot in program.copied:
            self.copy_to_static(slot)
        for number, call in enumerate(program.calls):
            self.add(number, call)

    def add(self, number: int, call: Call) -> None:
        """Add a call: a view that is taken now, a step on static tensors, or a call of PyTorch."""
        program = self.program
        is_static = all(slot in self.static for slot in call.taken)
        if is_static and program.aliases[number] and not call.written:
            args, kwargs = replace_leaves((call.args, call.kwargs), Slot, self.static.__getitem__)
            views = collect(call.operation(*args, **kwargs), Tensor)
            self.static.update(zip(call.made, views, strict=True))
            return
        if is_static and isinstance(call.results, Slot) and number not in program.by_torch:
            try:
                self.add_steps(call, call.results)
            except FAILURES:
                if not self.is_trial:
                    raise
                program.by_torch.add(number)
            else:
                return
        self.add_torch_call(number, call)

    def add_steps(self, call: Call, result: Slot) -> None:
        """Add a call that writes its result to a static tensor."""
        if self.is_trial and not all(map(self.program.fits, (*call.taken, result))):
            raise Untranslated("a tensor is too large or of another type")
        out = self.static[call.written[0]] if call.written else self.new_memory(result)
        args, kwargs = replace_leaves((call.args, call.kwargs), Slot, self.static.__getitem__)
        size = max(x.numel() for x in (out, *collect((args, kwargs), Tensor)))
        steps: list[Step]
        function, name, limit = OUT_VARIANTS.get(call.operation, (None, "", SET_ASIDE))
        if function is not None and size > limit:
            steps = [partial(function, *args, **kwargs, **{name: out})]
        elif call.operation in TRANSLATIONS:
            args, kwargs = replace_leaves((args, kwargs), Tensor, Tensor.numpy)
            steps = list(TRANSLATIONS[call.operation](out.numpy(), *args, **kwargs))
        else:
            raise Untranslated(str(call.operation))
        if self.is_trial:
            with np.errstate(all="ignore"):
                for step in steps:
                    step()
        self.static[result] = out
        if not call.written:
            self.set_aside.append(result)
        self.lines += [f"{self.variable('step', step)}()" for step in steps]
        self.engines.add("NumPy")

    def add_torch_call(self, number: int, call: Call) -> None:
        """Add a call of PyTorch. Its small results are copied into memory set aside, so that
        NumPy can go on with them."""
        arguments = [self.source(x) for x in call.args]
        arguments += [f"{name}={self.source(x)}" for name, x in call.kwargs.items()]
        function = self.variable("operation", call.operation)
        self.lines.append(f"{unpacking(call.results)} = {function}({', '.join(arguments)})")
        self.engines.add("PyTorch")
        if not self.program.aliases[number]:
            for slot in call.made:
                if self.should_copy(slot):
                    self.copy_to_static(slot)
        elif call.written and isinstance(call.results, Slot) and call.written[0] in self.static:
            self.static[call.results] = self.static[call.written[0]]
        last_use = self.program.last_use
        done = {slot for slot in (*call.taken, *call.made) if last_use[slot] == number}
        if names := sorted(slot for slot in done if slot not in self.static):
            self.lines.append(f"del {', '.join(names)}")

    def should_copy(self, slot: Slot) -> bool:
        """True if a result of PyTorch is better copied into memory set aside."""
        if not self.is_trial:
            return slot in self.program.examples
        used_later = self.program.last_use[slot] < len(self.program.calls)
        return (
            used_later and self.program.fits(slot) and self.program.examples[slot].numel() <= COPIED
        )

    def copy_to_static(self, slot: Slot) -> None:
        """Copy a local variable into memory set aside."""
        self.static[slot] = self.new_memory(slot)
        self.set_aside.append(slot)
        array = self.variable("array", self.static[slot].numpy())
        self.lines.append(f"copyto({array}, {slot}.numpy())")

    def new_memory(self, slot: Slot) -> Tensor:
        """Return memory for a result, filled with the values of the recorded run."""
        example = self.program.examples[slot]
        memory = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype)
        return memory.copy_(example)

    def variable(self, prefix: str, value: Any) -> str:
        """Return the name of a new global variable with this value."""
        name = f"{prefix}{len(self.variables)}"
        self.variables[name] = value
        return name

    def source(self, value: Any) -> str:
        """Return an expression for an argument or a result."""
        if isinstance(value, Slot):
            is_static = value in self.static
            return self.variable("tensor", self.static[value]) if is_static else value
        if isinstance(value, dict):
            items = (f"{self.source(key)}: {self.source(x)}" for key, x in value.items())
            return f"{{{', '.join(items)}}}"
        if is_branch(value):
            parts = "".join(f"{self.source(x)}, " for x in value)
            if hasattr(value, "_fields"):
                return f"{self.variable('type', type(value))}({parts})"
            return f"[{parts}]" if isinstance(value, list) else f"({parts})"
        return self.variable("value", value)

    @property
    def function(self) -> Run:
        """The generated function."""
        outputs, program = [], self.program
        for slot in program.outputs:
            if slot in self.static:
                # A copy, because the next run writes to the same memory.
                tensor = self.static.pop(slot)
                copy = f"{self.variable('tensor', tensor)}.clone()"
                if tensor.dtype in NUMPY_DTYPES:
                    copy = f"from_numpy({self.variable('array', tensor.numpy())}.copy())"
                outputs.append(f"{slot} = {copy}")
        outputs.append(f"return {self.source(program.result)}")
        calls = [f"    {line}" for line in self.lines] or ["    pass"]
        # Results of PyTorch made in inference mode cost less: autograd keeps no account of views.
        mode = "with inference_mode():" if "PyTorch" in self.engines else "if True:"
        body = "\n        ".join([mode, *calls, *outputs])
        parameters = ", ".join(program.inputs)
        source = f"def run({parameters}):\n    with lock, errstate(all='ignore'):\n        {body}\n"
        exec(compiled(source), self.variables)
        return self.variables["run"]


def unpacking(results: Any) -> str:
    """Return the left side of an assignment of an operation's results."""
    if is_branch(results):
        return f"({''.join(f'{unpacking(x)}, ' for x in results)})"
    return results if isinstance(results, Slot) else "_"


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


@lru_cache(maxsize=64)
def compiled(source: str) -> CodeType:
    """Return the compiled source; programs are bound again whenever a module is exchanged."""
    return compile(source, "<traced>", "exec")
