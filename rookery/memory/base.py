"""The interface of a memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from rookery.data.steps import Batch, Segment

PrecomputeTargets = Callable[[Batch, int], Batch]
"""Function from a batch and the number of updates it is for to the batch with target values."""


def no_precomputation(batch: Batch, updates: int) -> Batch:
    """Return the batch unchanged."""
    return batch


class Memory(Protocol):
    """Stores experience and yields batches to learn from.

    A memory without schedule, priorities or statistics inherits the methods for these.
    """

    generator: torch.Generator

    def set_progress(self, done: float) -> None:
        """Set the finished part of the run, 0 to 1, for schedules such as that of beta."""
        return None

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Store a segment of the actor `writer`."""
        ...

    def batches(self, precompute: PrecomputeTargets = no_precomputation) -> Iterator[Batch]:
        """Yield the batches that are due, on the learner's device, after `precompute`."""
        ...

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Set new priorities of the windows in a batch."""
        return None

    def take_report(self, seconds: float) -> dict[str, float]:
        """Return statistics of the `seconds` since the last call."""
        return {}

    def describe(self) -> str | None:
        """Return a line about the memory that storage will take, or None if it is little."""
        return None
