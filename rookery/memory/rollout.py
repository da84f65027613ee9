"""On-policy memory: everything is learned from a few times, then forgotten."""

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
    rows_apart,
    tree_leaves,
    tree_map,
    tree_split,
)
from rookery.memory.base import Ahead, as_drawn

SMALL_BYTES = 16 << 20
"""Rows up to this size are shuffled all at once; of larger ones a second copy would be felt."""
FEW_RESETS = 1 / 8
"""The share of reset rows in a rollout up to which it costs little to compute with them."""


class Rollout:
    """Yields epochs x minibatches of what was added, and then empties.

    Without recurrent state a minibatch is a random set of single rows, [1, M]. Reset rows are left
    out; where they are few and small, masked rows in their place are shared out evenly, so that
    every rollout gives minibatches of the same sizes. With it a minibatch is a random set of whole
    lanes, [T, M], each with the state before its first row.
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

    def set_progress(self, done: float) -> None:
        """Nothing changes over the run."""

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Take a segment in place of the last."""
        self.content = segment.steps, segment.state

    def batches(self, ahead: Ahead = as_drawn) -> Iterator[Batch]:
        """Minibatches on the learner's device."""
        return (ahead(batch, 1) for batch in self.shuffled())

    def shuffled(self) -> Iterator[Batch]:
        """All there is in minibatches, once in every epoch."""
        assert self.content is not None
        steps, state = tree_map(lambda x: x.to(self.device), self.content)
        self.content = None
        shuffle = self.lanes_shuffled if self.recurrent else self.rows_shuffled
        return shuffle(steps, state)

    def lanes_shuffled(self, steps: Steps, state: Tree) -> Iterator[Batch]:
        """Whole lanes."""
        for _ in range(self.epochs):
            for part in self.order(steps.mask.shape[1]).tensor_split(self.minibatches):
                lanes = tree_map(lambda x, part=part: x[part], state)
                yield Batch(map_batch(steps, part), lanes)

    def rows_shuffled(self, steps: Steps, state: Tree) -> Iterator[Batch]:
        """Single rows."""
        flat, parts = flatten_time(steps), self.minibatches
        rows = flat.mask.nonzero().squeeze(-1)
        resets = len(flat.mask) - len(rows)
        small = sum(leaf.nbytes for leaf in tree_leaves(flat)) <= SMALL_BYTES
        kept = resets if small and resets <= FEW_RESETS * len(flat.mask) else 0
        # Another row stands in for a reset row, masked: what an environment shows as it ends may
        # be beyond all bounds, and a gradient of 0 times that is none.
        spare, ignored = rows[:1].expand(kept), flat.mask.new_zeros(kept)
        for _ in range(self.epochs):
            order = rows[self.order(len(rows))]
            if small:
                mask = dealt(flat.mask[order], ignored, parts)
                yield from cut(flat, dealt(order, spare, parts), mask, parts)
            else:
                for some in order.tensor_split(parts):
                    yield from cut(flat, some, flat.mask[some], 1)

    def order(self, count: int) -> Tensor:
        """The numbers below `count` in a random order."""
        return torch.randperm(count, generator=self.generator).to(self.device)

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Nothing: rows are drawn evenly."""

    def take_report(self, seconds: float) -> dict[str, float]:
        """Nothing: what it holds is always new."""
        return {}

    def describe(self) -> str | None:
        """Nothing: it takes little."""
        return None


def dealt(rows: Tensor, others: Tensor, parts: int) -> Tensor:
    """Rows and others in one order which, cut into so many parts as equal as can be, gives each
    its share of both."""
    if not len(others):
        return rows
    size, larger = divmod(len(rows) + len(others), parts)
    hands = rows.tensor_split(parts)
    left = [size + (i < larger) - len(hand) for i, hand in enumerate(hands)]
    return torch.cat([x for pair in zip(hands, others.split(left), strict=True) for x in pair])


def cut(flat: Steps, rows: Tensor, mask: Tensor, parts: int) -> Iterator[Batch]:
    """The rows of leaves [N, ...] in this order and with this mask, in so many minibatches
    [1, M, ...]."""
    taken = tree_map(lambda x: x.index_select(0, rows), flat)._replace(mask=mask)
    for steps in tree_split(taken, parts, partial(rows_apart, parts=parts)):
        yield Batch(steps, ())
