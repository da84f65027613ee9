"""What travels between processes: arrays, which Ray hands on without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rookery.data.steps import Segment, Steps
from rookery.data.tree import Tree, tree_map
from rookery.learning.actor import Times


def to_arrays(tree: Tree) -> Tree:
    """Tensors as arrays in the CPU's memory."""
    return tree_map(lambda x: x.detach().cpu().numpy(), tree)


def from_arrays(tree: Tree, device: torch.device) -> Tree:
    """Arrays as tensors on `device`; on the CPU they share memory with the arrays, which nobody may
    write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return tree_map(lambda x: torch.from_numpy(x).to(device), tree)


def joined(segments: Sequence[Segment]) -> Segment:
    """The lanes of several segments as those of one, shorter ones filled up with masked rows."""
    if len(segments) == 1:
        return segments[0]
    rows = max(len(segment.steps.mask) for segment in segments)
    steps = [filled(segment.steps, rows) for segment in segments]
    lanes = tree_map(lambda *parts: torch.cat(parts), *[tuple(s)[1:] for s in segments])
    return Segment(tree_map(lambda *parts: torch.cat(parts, 1), *steps), *lanes)


def filled(steps: Steps, rows: int) -> Steps:
    """Steps with masked rows after them, so many rows in all."""
    missing = rows - len(steps.mask)
    if not missing:
        return steps
    return tree_map(lambda x: torch.cat([x, x.new_zeros(missing, *x.shape[1:])]), steps)


class Where(NamedTuple):
    """The process that plays a role."""

    node: str
    """Ray's id of its node."""
    host: str
    pid: int
    device: str
    threads: int


class Began(NamedTuple):
    """What one that keeps experience or learns from it answers when it is ready."""

    where: Where
    transport: str = ""
    """What sums the gradients of learners."""
    memory: str | None = None
    """A line about its replay memory, if it has one."""
    memory_bytes: int = 0


class Origin(NamedTuple):
    """Where a segment stands in what was played."""

    actor: str
    """Tells the process that played it from all others."""
    number: int
    """How many segments that process played before."""

    @property
    def before(self) -> Origin:
        """Of the segment whose rows this one's follow."""
        return self._replace(number=self.number - 1)


class Played(NamedTuple):
    """What an actor did for a segment."""

    env_steps: int
    episodes: list[tuple[float, int]]
    notices: list[str]
    """What its environments had to tell."""
    times: Times
    """Since the actor began."""
    cpu_s: float
    explore: float
    version: int
    """Of the weights it played with."""
    moments: dict[str, NDArray[Any]]
    """What its environments' normalisation saw."""
    origin: Origin
    """Of the segment."""


class Kept(NamedTuple):
    """How a replay memory is."""

    inserted: int
    sampled: int
    trained: int
    fill: float
    age: float
    may_insert: bool


class Stock(NamedTuple):
    """What a replay shard has to draw from."""

    total: float
    """Of the priorities to the power alpha, or the number of windows where they are drawn evenly;
    0 during the warm-up."""
    windows: int
    """How many there are."""
    credit: int
    """How many may be drawn, from whichever shard, for the rows that were inserted in this one."""


class LearnerTimes(NamedTuple):
    """Seconds a learner spent."""

    learn_s: float = 0.0
    reduce_s: float = 0.0
    wait_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: LearnerTimes) -> LearnerTimes:
        return LearnerTimes(*(a + b for a, b in zip(self, other, strict=True)))


class Learned(NamedTuple):
    """What a learner did lately."""

    updates: int
    samples: float
    counted: int
    """Updates that `sums` is over."""
    sums: NDArray[Any]
    names: list[str]
    input_bytes: int | None
    kept: Kept | None
    """The replay memory of its own, if it has one."""
    times: LearnerTimes
    """Since it began."""
    notices: list[str]
    """Lines for the run's log."""


def numbers(values: Tensor) -> NDArray[Any]:
    """A copy that later changes do not reach."""
    return np.array(values.detach().cpu().numpy())
