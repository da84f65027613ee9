"""Passes that rewrite recorded calls into fewer or faster ones with the same results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rookery.tracing.calls import Call, Slot, storage_address

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

Pass = Callable[[list[Call], list[Tensor], Sequence[Slot]], list[Call]]


def fold_constants(
    calls: Sequence[Call], tensors: Sequence[Tensor]
) -> tuple[list[Call], list[Slot]]:
    """Return the calls without those whose result is the same in every run, and the slots of these
    results. Results that are written to later do not count."""
    written = {storage_address(tensors[slot.index]) for call in calls for slot in call.written}
    constants: dict[Slot, None] = {}
    left = []
    for call in calls:
        known = call.operation in SHAPE_ONLY or all(slot in constants for slot in call.taken)
        address = storage_address(tensors[call.made[0].index]) if len(call.made) == 1 else None
        if known and address is not None and address not in written:
            constants[call.made[0]] = None
        else:
            left.append(call)
    return left, list(constants)


def drop_unused(calls: list[Call], tensors: list[Tensor], outputs: Sequence[Slot]) -> list[Call]:
    """Remove the calls whose results nothing uses."""
    needed = set(outputs)
    left: list[Call] = []
    for call in reversed(calls):
        if call.written or not needed.isdisjoint(call.made):
            needed.update(call.taken)
            left.append(call)
    return left[::-1]


def fuse_products(calls: list[Call], tensors: list[Tensor], outputs: Sequence[Slot]) -> list[Call]:
    """Replace `x.add_(a @ b)` by `x.addmm_(a, b)`, which saves a pass over memory.

    The product must have no other use, and nothing may write to `a` or `b` in between.
    """
    uses = Counter(slot for call in calls for slot in call.taken)
    uses.update(outputs)
    left = dict(enumerate(calls))
    products: dict[Slot, int] = {}
    """Where the products were made that could as well be made now."""
    for now, call in enumerate(calls):
        written = {storage_address(tensors[slot.index]) for slot in call.written}
        products = {
            slot: then
            for slot, then in products.items()
            if written.isdisjoint(storage_address(tensors[x.index]) for x in calls[then].args)
        }
        if call.operation is aten.mm.default:
            products[call.results] = now
        if call.operation is aten.add_.Tensor and len(call.args) == 2 and not call.kwargs:
            to, added = call.args
            if added in products and uses[added] == 1 and is_alike(tensors, to, added):
                factors = left.pop(products[added]).args
                left[now] = Call(aten.addmm_.default, (to, *factors), {}, call.results)
    return [left[place] for place in sorted(left)]


def is_alike(tensors: Sequence[Tensor], one: Slot, other: Slot) -> bool:
    """True if two tensors have the same shape and type."""
    a, b = tensors[one.index], tensors[other.index]
    return a.shape == b.shape and a.dtype == b.dtype


PASSES: tuple[Pass, ...] = (drop_unused, fuse_products)
