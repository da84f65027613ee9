"""A computation on tensors, recorded once and run again without Python and without autograd.

An update of a small network is some sixty operations of a microsecond or two, each wrapped in
several of bookkeeping: Python, autograd's graph, the lock that other threads wait for. The list of
operations is the same every time. So it is taken down once, forward and backward alike, and from
then on run as it stands, but for a few operations that come to the same with less work: by NumPy
where all tensors are small, else as one TorchScript call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rookery.tracing.attributes import Attributes, plain
from rookery.tracing.calls import Call, Slot, cloned, leaves, memory, replaced, spread
from rookery.tracing.numpy_program import Plan, Program
from rookery.tracing.passes import Simplified, simplified
from rookery.tracing.script import script

REFUSED = {
    torch.Tag.data_dependent_output: "reads a value",
    torch.Tag.dynamic_output_shape: "has a result whose shape depends on values",
    torch.Tag.nondeterministic_seeded: "is random",
}
"""Operations that may go another way the next time."""

PATIENCE = 10
"""Calls of a kind before it is recorded, which takes as long as hundreds of them."""
MAX_KINDS = 8
MAX_BYTES = 16 << 20
"""Of larger inputs the bookkeeping is a small share, and recording keeps every result alive."""
TOLERANCE = 1e-4
EXTREME = 1e8
"""Numbers that stand for something, such as that an action is illegal, say nothing of the scale of
the others."""

Kind = tuple[Hashable, ...]
"""The layout of every tensor among the inputs, the values of all others, and the state of the
owner's attributes: calls of one kind do the same operations."""
Place = tuple[int, torch.Size, tuple[int, ...], torch.dtype]
"""What tells tensors apart while all of them are alive."""


def place(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def refusal(operation: Any, args: Any) -> str | None:
    """Why an operation cannot be recorded, if it cannot."""
    if operation is torch.ops.aten.index.Tensor:
        selects = any(x.dtype in (torch.bool, torch.uint8) for x in leaves(args[1], Tensor))
        tags = [torch.Tag.dynamic_output_shape] if selects else []
    else:
        tags = operation.tags
    return next((f"{operation} {REFUSED[tag]}" for tag in tags if tag in REFUSED), None)


def is_view(operation: Any, args: Any, results: Any) -> bool:
    """Whether an operation gave nothing but other ways to see what it was given; some that may do
    so make copies at times."""
    given = {memory(tensor) for tensor in leaves(args, Tensor)}
    return operation.is_view and given.issuperset(map(memory, leaves(results, Tensor)))


def rebuilding(tree: Any, slots: Sequence[Slot]) -> Callable[[Sequence[Tensor]], Any]:
    """What puts tensors in the order of `slots` into their places in the tree."""
    if isinstance(tree, Slot):
        return itemgetter(slots.index(tree))
    if isinstance(tree, dict):
        named = {key: rebuilding(value, slots) for key, value in tree.items()}
        return lambda made: {key: part(made) for key, part in named.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        parts = [rebuilding(value, slots) for value in tree]
        gathered = getattr(type(tree), "_make", type(tree))
        return lambda made: gathered([part(made) for part in parts])
    return lambda made: tree


class Recorder(TorchDispatchMode):
    """Takes down every operation done while it is entered.

    Tensors are known by their place in memory, for autograd hands what it saved to the backward
    pass as new objects. All stay alive meanwhile, so that no place is used twice.
    """

    def __init__(self, inputs: Iterable[Tensor]):
        super().__init__()
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        """By slot."""
        self.inputs: list[Slot] = []
        """What the calls need and do not make: the inputs given, then those met on the way."""
        self.fixed: set[Slot] = set()
        """Inputs that were met on the way: the same tensors every time."""
        self.views: list[Call] = []
        """Other ways to see them, taken once."""
        self.slots: dict[Place, Slot] = {}
        self.refused: str | None = None
        for tensor in inputs:
            if place(tensor) in self.slots:
                self.refused = "two inputs share their memory"
            self.inputs.append(self.new_slot(tensor))
        self.given = len(self.inputs)
        """How many inputs were given."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to hide this class from its compiler, for which it would load that: some
        800 modules."""
        return False

    def new_slot(self, tensor: Tensor) -> Slot:
        self.tensors.append(tensor)
        slot = self.slots[place(tensor)] = Slot(len(self.tensors) - 1)
        return slot

    def slot_of(self, tensor: Tensor) -> Slot:
        slot = self.slots.get(place(tensor))
        if slot is None:
            slot = self.new_slot(tensor)
            self.inputs.append(slot)
            self.fixed.add(slot)
        return slot

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.refused = self.refused or refusal(operation, args)
        if self.refused:
            return operation(*args, **kwargs)
        results = operation(*args, **kwargs)
        if operation.is_view and all(place(x) in self.slots for x in leaves(results, Tensor)):
            # Seen that way before: a transposed transpose, a detached tensor, a slice taken twice.
            return results
        slots = replaced(args, Tensor, self.slot_of), replaced(kwargs, Tensor, self.slot_of)
        call = Call(operation, *slots, replaced(results, Tensor, self.new_slot))
        if self.fixed.issuperset(leaves(slots, Slot)) and is_view(operation, args, results):
            self.views.append(call)
            self.fixed.update(leaves(call.results, Slot))
            self.inputs += leaves(call.results, Slot)
        else:
            self.calls.append(call)
        return results

    def met(self) -> list[Tensor]:
        """The tensors met on the way."""
        return [self.tensors[slot.index] for slot in self.inputs[self.given :]]

    def lines(self) -> list[str]:
        """What was done, in order; the same for computations that do the same."""
        return [str(call) for call in (*self.views, *self.calls)]


class Recording:
    """The operations of one kind of call, ready to run."""

    def __init__(self, recorder: Recorder, result: Any, modules: Sequence[nn.Module]):
        shape = replaced(result, Tensor, recorder.slot_of)
        outputs: list[Slot] = list(dict.fromkeys(leaves(shape, Slot)))
        self.result = rebuilding(shape, outputs)
        """From what a run gives to what the function gave."""
        self.work = simplified(recorder.calls, recorder.tensors, outputs)
        given = recorder.given
        self.lines = recorder.lines()
        self.slots = [*recorder.inputs[given:], *self.work.fixed]
        self.met = [recorder.tensors[slot.index].detach() for slot in self.slots]
        self.bound = runner(recorder.inputs[:given], self.slots, self.work, recorder.tensors)
        """From the tensors met on the way to what makes outputs of inputs with them."""
        self.run = self.bound(self.met)
        names = {place(tensor): name for name, tensor in named_tensors(modules).items()}
        self.names = [names.get(place(tensor)) for tensor in self.met]
        self.rehearsal: tuple[list[Tensor], Run] | None = None
        """Copies of the tensors met on the way, and what runs on them."""
        self.views = recorder.views
        self.modules = tuple(modules)
        self.anchors = anchors(modules)
        self.uses = 0
        self.check_at = 1
        """The use at which it is compared with the computation next."""
        self.trusted = False
        """True if it has agreed with the computation."""
        self.doubted = False
        """True if it gave other results when it was compared last."""

    @property
    def engine(self) -> str:
        """What runs it."""
        return "NumPy (small tensors)" if isinstance(self.run, Program) else "TorchScript"

    def follow(self, modules: Sequence[nn.Module]) -> None:
        """Use the tensors of these modules from now on, where some were exchanged or moved."""
        if all(map(is_, modules, self.modules)) and all(x.stays() for x in self.anchors):
            return
        tensors = named_tensors(modules)
        values = {
            slot: tensor if name is None else tensors[name].detach()
            for slot, tensor, name in zip(self.slots, self.met, self.names, strict=True)
        }
        for call in self.views:
            args, kwargs = replaced((call.args, call.kwargs), Slot, values.__getitem__)
            results = leaves(call.operation(*args, **kwargs), Tensor)
            values.update(zip(leaves(call.results, Slot), results, strict=True))
        self.met = list(values.values())
        self.run = self.bound(self.met)
        self.rehearsal = None
        self.modules, self.anchors = tuple(modules), anchors(modules)

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        return self.result(self.run(inputs))

    def agrees(self, inputs: Sequence[Tensor], compute: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether the recording makes of the inputs what `compute` does, and the result of
        `compute`, whose side effects are those that stay."""
        try:
            made, met = self.rehearsed(inputs)
        except RuntimeError:
            return False, compute()
        result = compute()
        if outline(made) != outline(result):
            return False, result
        ours, theirs = [*leaves(made, Tensor), *met], [*leaves(result, Tensor), *self.met]
        with torch.no_grad():
            scale = max(map(magnitude, (*inputs, *theirs)), default=0.0) if self.trusted else None
            return all(close(a, b, scale) for a, b in zip(ours, theirs, strict=True)), result

    @torch.inference_mode()
    def rehearsed(self, inputs: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        """Return what the recording gives, run on copies of all that it may write to, and the
        copies of the tensors met on the way."""
        if self.rehearsal is None:
            met = cloned(self.met)
            run = self.bound(met)
        else:
            met, run = self.rehearsal
            for copy, tensor in zip(met, self.met, strict=True):
                copy.copy_(tensor)
        if isinstance(run, Program):
            # Its tensors are small, and making it takes as long as many runs.
            self.rehearsal = met, run
        return self.result(run(cloned(inputs))), met

    def difference(self, recorder: Recorder) -> str | None:
        """Return what was done otherwise in a computation that was taken down again, if anything.
        This is exact, where results may differ in rounding and agree by chance."""
        for ours, theirs in zip_longest(self.lines, recorder.lines(), fillvalue="nothing"):
            if ours != theirs:
                return f"traced {ours}, now {theirs}"
        if not all(map(identical, self.met, recorder.met())):
            return "it uses other tensors than when it was traced"
        return None


def identical(ours: Tensor, theirs: Tensor) -> bool:
    """True if both are the same place in memory, or constants that are equal to the bit."""
    if place(ours) == place(theirs):
        return True
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def outline(tree: Any) -> str:
    """A tree without the numbers in its tensors."""
    return repr(replaced(tree, Tensor, type))


Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def runner(
    inputs: Sequence[Slot], met: Sequence[Slot], work: Simplified, examples: Sequence[Tensor]
) -> Callable[[Sequence[Tensor]], Run]:
    """What runs the calls on inputs, given the tensors that they met: NumPy where all are small,
    else TorchScript."""
    plan = Plan(inputs, met, work.calls, work.outputs, examples)
    if plan.pays():
        return partial(Program, plan)
    return partial(Scripted, script([*inputs, *met], work.calls, work.outputs))


class Scripted:
    """A function of TorchScript, given the tensors that it met."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], met: Sequence[Tensor]):
        self.function = function
        self.met = met

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        # A tenth faster than without gradients alone: what is made keeps no account of its views.
        with torch.inference_mode():
            return self.function(*inputs, *self.met)


def close(ours: Tensor, theirs: Tensor, scale: float | None) -> bool:
    """True if two tensors are the same but for rounding.

    Numbers are compared on the scale of the tensor or, if one is given, of all that they were made
    from. That forgives what an agent that has learned comes to: differences of nearly equal numbers
    in which no digit is right, and an index that tells which of them is the greatest.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if not ours.is_floating_point():
        return scale is not None or torch.equal(ours, theirs)
    allowed = TOLERANCE * (magnitude(theirs) if scale is None else scale)
    return torch.allclose(ours, theirs, rtol=TOLERANCE, atol=allowed, equal_nan=True)


def magnitude(tensor: Tensor) -> float:
    """The largest number that stands for a number, without its sign; 0 if there is none."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    sizes = tensor.abs()
    return float(torch.where(sizes < EXTREME, sizes, 0).max())


class Anchor(NamedTuple):
    """A parameter and where it was."""

    tensor: Tensor
    address: int

    def stays(self) -> bool:
        return self.tensor.data_ptr() == self.address


def anchors(modules: Sequence[nn.Module]) -> list[Anchor]:
    """The first parameter of each module: they move together if at all."""
    first = (next(module.parameters(), None) for module in modules)
    return [Anchor(x, x.data_ptr()) for x in first if x is not None]


def named_tensors(modules: Sequence[nn.Module]) -> dict[tuple[int, str], Tensor]:
    """Parameters and buffers of all modules."""
    return {
        (number, name): tensor
        for number, module in enumerate(modules)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """True if both are the same objects in the same order."""
    return len(one) == len(other) and all(map(is_, one, other))


def bindings(modules: Sequence[nn.Module]) -> list[Any]:
    """Every object that is an attribute, a parameter or a buffer of the modules or their parts."""
    return [
        value
        for module in modules
        for part in module.modules()
        for held in (vars(part), part._parameters, part._buffers)
        for value in held.values()
    ]


class Recorded:
    """`function`, which takes and gives trees of tensors, done from a recording where possible.

    The first calls of a kind are computed as they are. One is recorded while it is computed; from
    then on the recording is run. At its uses number 1, 2, 4, 8 and so on it is compared with the
    computation, which then gives the results. What reads values, draws random numbers, comes in too
    many kinds or disagrees is computed as it is for ever, and `refused` says why.

    `modules` are those whose parameters the function uses: they may be exchanged for others of the
    same shape. `owner` is the object whose attributes it reads: one that is set to another value
    makes for another kind of call. `tell` is called when `status` changes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        modules: Callable[[], Sequence[nn.Module]] = lambda: (),
        owner: object | None = None,
        tell: Callable[[Recorded], None] = lambda recorded: None,
    ):
        self.function = function
        self.modules = modules
        self.attributes = Attributes(owner)
        self.tell = tell
        self.recordings: dict[Kind, Recording] = {}
        self.seen: dict[Kind, int] = {}
        self.refused: str | None = None
        self.status: str | None = None
        """How calls are computed; None before it is known."""
        self.lost = False
        """True if it was refused after recordings had been run."""

    def __call__(self, *args: Any) -> Any:
        if self.refused:
            return self.function(*args)
        tensors: list[Tensor] = []
        key: list[Any] = [self.attributes.state()]
        spread(args, tensors, key)
        kind = tuple(key)
        try:
            recording = self.recordings.get(kind)
        except TypeError as error:
            self.refuse(f"an argument cannot be told from others: {error}")
            return self.function(*args)
        if recording is None:
            return self.first_calls(kind, tensors, args)
        modules = self.modules()
        recording.follow(modules)
        recording.uses += 1
        if recording.uses < recording.check_at:
            return recording(tensors)
        return self.compared(recording, modules, tensors, args)

    def compared(
        self,
        recording: Recording,
        modules: Sequence[nn.Module],
        tensors: Sequence[Tensor],
        args: Any,
    ) -> Any:
        """Compute, and see whether the recording does the same."""
        recorder = Recorder(tensors)

        def compute() -> Any:
            with recorder:
                return self.function(*args)

        agrees, result = recording.agrees(tensors, compute)
        if recorder.refused:
            self.refuse(recorder.refused)
        elif not same(modules, self.modules()):
            # Another thread exchanged them meanwhile, so that nothing is known.
            recording.check_at = recording.uses + 1
        elif difference := recording.difference(recorder):
            self.refuse(f"a Python value that it depends on has changed: {difference}")
        elif agrees:
            recording.trusted, recording.doubted = True, False
            recording.check_at = 2 ** recording.uses.bit_length()
            engines = sorted({x.engine for x in self.recordings.values() if x.trusted})
            self.note(f"traced, run by {' and '.join(engines)}")
        elif recording.doubted:
            self.refuse("the recording gives other results than the computation")
        else:
            # Rounding may have decided which of two numbers is greater.
            recording.doubted = True
            recording.check_at = recording.uses + 1
        return result

    def first_calls(self, kind: Kind, tensors: list[Tensor], args: Any) -> Any:
        """Compute, and record what has come before."""
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if reason := self.objection(kind, tensors):
            self.refuse(reason)
        if self.refused or self.seen[kind] <= PATIENCE:
            return self.function(*args)
        modules = self.modules()
        before = bindings(modules)
        recorder = Recorder(tensors)
        with recorder:
            result = self.function(*args)
        if recorder.refused:
            self.refuse(recorder.refused)
        elif not same(modules, self.modules()):
            # Another thread exchanged them meanwhile. Try again later.
            self.seen[kind] = 0
        elif not same(before, bindings(modules)):
            self.refuse("it sets attributes of its modules")
        else:
            try:
                self.recordings[kind] = Recording(recorder, result, modules)
            except RuntimeError as error:
                self.refuse(f"TorchScript: {error}")
        return result

    def objection(self, kind: Kind, tensors: Sequence[Tensor]) -> str | None:
        """Why calls of this kind are not to be recorded, if so."""
        opaque = [value for value in kind if not plain(value)]
        if opaque:
            return f"an argument is a {type(opaque[0]).__name__}, which may change unseen"
        if len(self.seen) > MAX_KINDS:
            if sum(other[1:] == kind[1:] for other in self.seen) > 1:
                return f"it depends on Python values that change: {self.attributes.changed}"
            return "there are too many kinds of inputs"
        if sum(x.nbytes for x in tensors) > MAX_BYTES:
            return "the inputs are large"
        return None

    def refuse(self, reason: str) -> None:
        """Compute as it is from now on."""
        self.lost = any(recording.trusted for recording in self.recordings.values())
        self.refused = reason
        self.recordings.clear()
        self.seen.clear()
        self.attributes = Attributes(None)
        since = " from now on" if self.lost else ""
        self.note(f"computed plainly{since}: {reason}")

    def note(self, status: str) -> None:
        """Tell of a status that is new."""
        if status != self.status:
            self.status = status
            self.tell(self)
