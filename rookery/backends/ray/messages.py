"""Messages between processes of a Ray run: arrays, which Ray passes on without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rookery.data.layer_records import LayerRecords
from rookery.data.steps import Segment
from rookery.data.tree import Tree, tree_map
from rookery.learning.actor import Played, Times
from rookery.memory.replay import Replay


def to_arrays(tree: Tree) -> Tree:
    """Return tensors as arrays in the CPU's memory."""
    return tree_map(lambda x: x.detach().cpu().numpy(), tree)


def from_arrays(tree: Tree, device: torch.device) -> Tree:
    """Return arrays as tensors on `device`; on the CPU they share memory with the arrays, which
    must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return tree_map(lambda x: torch.from_numpy(x).to(device), tree)


def to_array(values: Tensor) -> NDArray[Any]:
    """Return a copy of the values as an array."""
    return np.array(values.detach().cpu().numpy())


def join_segments(segments: Sequence[Segment]) -> Segment:
    """Return the lanes of several segments as one; shorter ones are padded with masked rows."""
    if len(segments) == 1:
        return segments[0]
    rows = max(len(segment.steps.mask) for segment in segments)

    def padded(x: Tensor) -> Tensor:
        missing = rows - len(x)
        return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x

    steps = [tree_map(padded, segment.steps) for segment in segments]
    lanes = tree_map(lambda *parts: torch.cat(parts), *[tuple(s)[1:] for s in segments])
    return Segment(tree_map(lambda *parts: torch.cat(parts, 1), *steps), *lanes)


class WorkerPlace(NamedTuple):
    """The process of a worker."""

    node: str
    """Ray's id of its node."""
    host: str
    pid: int
    device: str
    threads: int


class WorkerReady(NamedTuple):
    """The answer of a worker that is ready."""

    place: WorkerPlace
    transport: str = ""
    """Transport of the gradient sums of learners."""
    memory: str | None = None
    """A line about its replay memory, if it has one."""
    memory_bytes: int = 0


class Origin(NamedTuple):
    """Identifies a segment among all that were played."""

    actor: str
    """A unique id of the process that played it."""
    number: int
    """Number of segments that the process played before."""


class SegmentInfo(NamedTuple):
    """Counters and statistics that come with a segment."""

    played: Played
    version: int
    """Version of the weights it was played with."""
    moments: dict[str, NDArray[Any]]
    """New statistics of the environments' normalisation."""
    origin: Origin


class ReplayStatus(NamedTuple):
    """Counters of a replay memory."""

    inserted: int
    sampled: int
    trained: int
    fill: float
    age: float
    may_insert: bool
    memory_mb: float = 0.0
    """In RAM, of a process that only has this memory."""

    @classmethod
    def of(cls, memory: Replay) -> ReplayStatus:
        """Return the counters of a replay memory."""
        limiter = memory.limiter
        return cls(
            inserted=limiter.inserted,
            sampled=limiter.sampled,
            trained=memory.trained,
            fill=memory.fill,
            age=memory.take_age(),
            may_insert=limiter.may_insert(),
        )


class ShardStock(NamedTuple):
    """The windows of a replay shard that can be drawn."""

    total: float
    """Sum of the priorities to the power alpha, or the number of windows where they are drawn
    evenly; 0 during the warm-up."""
    windows: int
    credit: int
    """Windows that may be drawn, from any shard, for the rows inserted in this one."""

    @classmethod
    def of(cls, memory: Replay) -> ShardStock:
        """Return what a replay memory has to draw from."""
        limiter, distribution = memory.limiter, memory.distribution
        return cls(
            total=distribution.total if limiter.started_at is not None else 0.0,
            windows=distribution.count,
            credit=limiter.credit // memory.windows.samples,
        )


class LearnerReport(NamedTuple):
    """Progress of a learner since its last report."""

    updates: int
    samples: float
    counted: int
    """Updates that `sums` is over."""
    sums: NDArray[Any]
    names: list[str]
    """Names of the metrics in `sums`."""
    input_bytes: int | None
    replay: ReplayStatus | None
    """Counters of its own replay memory, if it has one."""
    times: Times
    """Since it started."""
    memory_mb: float
    """In RAM now, of its process."""
    notices: list[str]
    """Lines for the log."""
    measured: dict[str, float]
    """Columns of the diagnosis."""
    records: LayerRecords | None
    """Histograms and watched layers."""
