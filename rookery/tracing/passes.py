"""Fewer operations that come to the same.

What every run would compute alike is computed once. A product that is only added to something is
added while it is made: of large matrices that saves the memory it would pass through. A product of
few rows and many columns is made the other way round, for which the libraries are better prepared.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.tracing.calls import Call, Slot, made, memory, takes, writes

aten = torch.ops.aten
BY_SHAPE = {
    aten.full_like.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones_like.default,
    aten.zeros_like.default,
}
"""Operations whose results depend on the shapes of their inputs only."""
FEW_ROWS, MANY_COLUMNS = range(16, 65), 1024
"""Where it was measured to pay: the gradient of what a Nature CNN's dense layer is given."""
ROW_BY_ROW = torch.contiguous_format


class Simplified(NamedTuple):
    """Calls that come to the same."""

    calls: list[Call]
    fixed: list[Slot]
    """Results they need that are the same in every run."""
    outputs: list[Slot]


def simplified(
    calls: Sequence[Call], tensors: Sequence[Tensor], outputs: Sequence[Slot]
) -> Simplified:
    """What the calls do with fewer; `tensors` are those of one run, by slot."""
    spare = map(Slot, itertools.count(len(tensors)))
    fixed = constants(calls, tensors)
    left = [call for call in calls if not (len(made(call)) == 1 and made(call)[0] in fixed)]
    # Who is given a constant may write to it.
    copies = {slot: next(spare) for slot in outputs if slot in fixed}
    left += [Call(aten.clone.default, (slot,), {}, copy) for slot, copy in copies.items()]
    outputs = [copies.get(slot, slot) for slot in outputs]
    left = turned(added_in_place(without_idle(left, outputs), tensors, outputs), tensors, spare)
    used = {slot for call in left for slot in takes(call)}
    return Simplified(left, [slot for slot in fixed if slot in used], outputs)


def constants(calls: Sequence[Call], tensors: Sequence[Tensor]) -> dict[Slot, None]:
    """Results that are the same in every run and stay so, in their order: nothing writes to their
    memory."""
    changing = {memory(tensors[slot.index]) for call in calls for slot in writes(call)}
    found: dict[Slot, None] = {}
    for call in calls:
        results = made(call)
        known = call.operation in BY_SHAPE or all(slot in found for slot in takes(call))
        if known and len(results) == 1 and memory(tensors[results[0].index]) not in changing:
            found[results[0]] = None
    return found


def without_idle(calls: Sequence[Call], outputs: Iterable[Slot]) -> list[Call]:
    """The calls less those of which nothing comes."""
    needed = set(outputs)
    left: list[Call] = []
    for call in reversed(calls):
        if writes(call) or not needed.isdisjoint(made(call)):
            needed.update(takes(call))
            left.append(call)
    return left[::-1]


def added_in_place(
    calls: Sequence[Call], tensors: Sequence[Tensor], outputs: Iterable[Slot]
) -> list[Call]:
    """The calls with matrix products that are only added to something made there."""
    uses = Counter(slot for call in calls for slot in takes(call))
    uses.update(outputs)
    left = dict(enumerate(calls))
    products: dict[Slot, int] = {}
    """Places of those that might as well be made now: nothing has written to their factors."""
    for place, call in enumerate(calls):
        written = {memory(tensors[slot.index]) for slot in writes(call)}
        products = {
            slot: made_at
            for slot, made_at in products.items()
            if written.isdisjoint(memory(tensors[factor.index]) for factor in calls[made_at].args)
        }
        if is_product(call):
            products[call.results] = place
        if call.operation is aten.add_.Tensor and len(call.args) == 2 and not call.kwargs:
            to, added = call.args
            if added in products and uses[added] == 1 and alike(tensors, to, added):
                factors = left.pop(products[added]).args
                left[place] = Call(aten.addmm_.default, (to, *factors), {}, call.results)
    return [left[place] for place in sorted(left)]


def alike(tensors: Sequence[Tensor], one: Slot, other: Slot) -> bool:
    """Whether two tensors have the same shape and type."""
    a, b = tensors[one.index], tensors[other.index]
    return a.shape == b.shape and a.dtype == b.dtype


def turned(calls: Iterable[Call], tensors: Sequence[Tensor], spare: Iterator[Slot]) -> list[Call]:
    """The calls with products of few rows and many columns made as those of many rows."""
    left: list[Call] = []
    for call in calls:
        rows, columns = tensors[made(call)[0].index].shape if is_product(call) else (0, 0)
        if rows not in FEW_ROWS or columns < MANY_COLUMNS:
            left.append(call)
            continue
        first, second, product, back = islice(spare, 4)
        left += [
            Call(aten.t.default, call.args[:1], {}, first),
            Call(aten.t.default, call.args[1:], {}, second),
            Call(aten.mm.default, (second, first), {}, product),
            Call(aten.t.default, (product,), {}, back),
            # What follows may count on rows that lie side by side.
            Call(aten.clone.default, (back,), {"memory_format": ROW_BY_ROW}, call.results),
        ]
    return left


def is_product(call: Call) -> bool:
    """Whether it is a plain product of two matrices."""
    return call.operation is aten.mm.default
