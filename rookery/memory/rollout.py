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


class Rollout:
    """Yields epochs x minibatches of what was added, and then empties.

    Without recurrent state a minibatch is a random set of single rows, [1, M], reset rows left
    out; with it a random set of whole lanes, [T, M], each with the state before its first row.
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
        rows = None if self.recurrent else steps.mask.flatten().nonzero().squeeze(-1)
        flat = None if self.recurrent else flatten_time(steps)
        count = steps.mask.shape[1] if rows is None else len(rows)
        for _ in range(self.epochs):
            order = torch.randperm(count, generator=self.generator).to(self.device)
            if rows is not None:
                yield from cuts(flat, rows[order], self.minibatches)
                continue
            for part in order.tensor_split(self.minibatches):
                lanes = tree_map(lambda x, part=part: x[part], state)
                yield Batch(map_batch(steps, part), lanes)

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Nothing: rows are drawn evenly."""

    def take_report(self, seconds: float) -> dict[str, float]:
        """Nothing: what it holds is always new."""
        return {}

    def describe(self) -> str | None:
        """Nothing: it takes little."""
        return None


def cuts(flat: Tree, rows: Tensor, parts: int) -> Iterator[Batch]:
    """The rows of leaves [N, ...] in this order, in so many minibatches [1, M, ...]."""
    small = sum(leaf.nbytes for leaf in tree_leaves(flat)) <= SMALL_BYTES
    for some in (rows,) if small else rows.tensor_split(parts):
        taken = tree_map(lambda x, some=some: x.index_select(0, some), flat)
        count = parts if small else 1
        for steps in tree_split(taken, count, partial(rows_apart, parts=count)):
            yield Batch(steps, ())
