"""Rollout memory for on-policy algorithms: shuffled minibatches over a few epochs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from rookery.data.steps import Batch, Segment, Steps
from rookery.data.tree import (
    Tree,
    flatten_time,
    map_batch,
    split_rows,
    tree_leaves,
    tree_map,
    tree_split,
)
from rookery.memory.base import Memory, PrecomputeTargets, no_precomputation

SMALL_ROLLOUT_BYTES = 16 << 20
"""Rollouts up to this size are shuffled as a whole; for larger ones the copy would cost much."""
FEW_RESETS = 1 / 8
"""Share of reset rows in a rollout up to which computing with masked rows costs little."""


class Rollout(Memory):
    """Yields epochs x minibatches of the last segment, and then is empty.

    Without recurrent state a minibatch is a random set of single rows, [1, M]. Reset rows are left
    out; where they are few and small, masked copies of another row replace them, spread evenly, so
    that every rollout gives minibatches of the same sizes. With recurrent state a minibatch is a
    random set of whole lanes, [T, M], each with the state before its first row.
    """

    def __init__(
        self, epochs: int, minibatches: int, recurrent: bool, device: torch.device, seed: int
    ):
        self.epochs = epochs
        self.minibatches = minibatches
        self.recurrent = recurrent
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.content: tuple[Steps, Tree] | None = None

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Replace the segment."""
        self.content = segment.steps, segment.state

    def batches(self, precompute: PrecomputeTargets = no_precomputation) -> Iterator[Batch]:
        """Yield all rows once per epoch, in minibatches on the learner's device."""
        assert self.content is not None
        steps, state = tree_map(lambda x: x.to(self.device), self.content)
        self.content = None
        shuffled = self.lane_batches(steps, state) if self.recurrent else self.row_batches(steps)
        return (precompute(batch, 1) for batch in shuffled)

    def lane_batches(self, steps: Steps, state: Tree) -> Iterator[Batch]:
        """Yield minibatches of whole lanes."""
        for _ in range(self.epochs):
            for part in self.order(steps.mask.shape[1]).tensor_split(self.minibatches):
                lanes = tree_map(lambda x, part=part: x[part], state)
                yield Batch(map_batch(steps, part), lanes)

    def row_batches(self, steps: Steps) -> Iterator[Batch]:
        """Yield minibatches of single rows."""
        flat, parts = flatten_time(steps), self.minibatches
        rows = flat.mask.nonzero().squeeze(-1)
        resets = len(flat.mask) - len(rows)
        small = sum(leaf.nbytes for leaf in tree_leaves(flat)) <= SMALL_ROLLOUT_BYTES
        kept = resets if small and resets <= FEW_RESETS * len(flat.mask) else 0
        # A masked copy of another row replaces a reset row, whose observation may be infinite: its
        # gradient would be 0 times infinity, which is NaN.
        spare, ignored = rows[:1].expand(kept), flat.mask.new_zeros(kept)
        for _ in range(self.epochs):
            order = rows[self.order(len(rows))]
            if small:
                mask = interleave(flat.mask[order], ignored, parts)
                yield from minibatches(flat, interleave(order, spare, parts), mask, parts)
            else:
                for some in order.tensor_split(parts):
                    yield from minibatches(flat, some, flat.mask[some], 1)

    def order(self, count: int) -> Tensor:
        """Return a random permutation of the numbers below `count`."""
        return torch.randperm(count, generator=self.generator).to(self.device)


def interleave(rows: Tensor, others: Tensor, parts: int) -> Tensor:
    """Return rows and others in an order in which each of `parts` equal parts (see `split_rows`)
    has its share of both."""
    if not len(others):
        return rows
    size, larger = divmod(len(rows) + len(others), parts)
    shares = rows.tensor_split(parts)
    left = [size + (i < larger) - len(share) for i, share in enumerate(shares)]
    return torch.cat([x for pair in zip(shares, others.split(left), strict=True) for x in pair])


def minibatches(flat: Steps, rows: Tensor, mask: Tensor, parts: int) -> Iterator[Batch]:
    """Yield `parts` minibatches [1, M, ...] of the rows of leaves [N, ...], in this order and with
    this mask."""
    taken = tree_map(lambda x: x.index_select(0, rows), flat)._replace(mask=mask)
    for steps in tree_split(taken, parts, partial(split_rows, parts=parts)):
        yield Batch(steps, ())
