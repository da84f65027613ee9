"""What a memory is to the rest of the system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from rookery.data.steps import Batch, Segment

Ahead = Callable[[Batch, int], Batch]
"""A batch for so many updates, with what can be known of it before them."""


def as_drawn(batch: Batch, updates: int) -> Batch:
    """Nothing is known ahead."""
    return batch


class Ledger(Protocol):
    """What a memory tells of itself."""

    def take_report(self, seconds: float) -> dict[str, float]:
        """What is worth reporting of the `seconds` since the last call."""
        ...

    def describe(self) -> str | None:
        """A line about the memory it will take, if that is worth one."""
        ...


class Memory(Ledger, Protocol):
    """Where experience goes, and batches come from."""

    generator: torch.Generator

    def set_progress(self, done: float) -> None:
        """Note the part of the run that is done, 0 to 1, for what changes with it."""
        ...

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Take a segment of the actor `writer`."""
        ...

    def batches(self, ahead: Ahead = as_drawn) -> Iterator[Batch]:
        """The batches that are due, on the learner's device, what is known ahead with them."""
        ...

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Take the new priorities of a batch's windows."""
        ...
