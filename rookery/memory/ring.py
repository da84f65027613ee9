"""Rows of experience in preallocated memory, every row once, the oldest overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from rookery.data.steps import Steps
from rookery.data.tree import Tree, tree_leaves, tree_map
from rookery.memory.sum_tree import Floats, Indices

SMALL_BYTES = 1 << 16
"""Up to this much NumPy gathers sooner; of more, torch's threads share."""


class Normalizer(Protocol):
    """Scales raw rows to what an agent sees, by statistics that change over the run."""

    def obs(self, rows: Tree) -> Tree:
        """Observations, as NumPy arrays with any leading axes."""
        ...

    def reward(self, rows: Floats) -> Floats:
        """Rewards of any shape."""
        ...


@dataclass(frozen=True)
class Layout:
    """What a row is made of, as tensors of one row's shape and type on the device "meta"."""

    obs: Tree
    """One frame where observations are stacks of frames."""
    action: Tensor
    extra: dict[str, Tensor]
    """What the algorithm recorded while acting."""
    state: Tree = ()
    """Recurrent state, stored only with every `stride`-th row."""
    frames: int = 1
    """Frames in an observation; their stack is rebuilt when rows are taken out."""
    stride: int = 1
    normalizer: Normalizer | None = None
    """Rows are stored raw and scaled by this when they are taken out, so that all of them are on
    the scale of the present; None: as they are."""

    def row_bytes(self) -> float:
        """Memory that a row takes, its share of the stored state included."""
        row = [*tree_leaves((self.obs, self.action, self.extra)), *small_columns()]
        return sum(map(bytes_of, row)) + sum(map(bytes_of, tree_leaves(self.state))) / self.stride


def small_columns() -> tuple[Tensor, ...]:
    """Reward, discount and mask of a row."""
    flag = torch.empty((), dtype=torch.uint8, device="meta")
    return torch.empty((), device="meta"), flag, flag


def bytes_of(tensor: Tensor) -> int:
    """Memory that a tensor of this kind takes."""
    return tensor.numel() * tensor.element_size()


class Ring:
    """The newest `rows` rows of each of `lanes` environments.

    Rows of a lane are numbered from 0 on and never renumbered; row r stands in slot r modulo
    `rows`. One place more than there are rows stays zero: frames before an episode's start.
    """

    def __init__(self, layout: Layout, lanes: int, rows: int):
        self.layout = layout
        self.lanes = lanes
        self.rows = rows
        self.nowhere = lanes * rows
        self.obs = tree_map(self.column, layout.obs)
        # The small columns are read by numpy, which costs less for a handful of numbers.
        kinds = (layout.action, *small_columns())
        self.action, self.reward, self.discount, self.mask = (
            self.column(kind).numpy() for kind in kinds
        )
        self.extra = {name: self.column(kind).numpy() for name, kind in layout.extra.items()}
        self.starts = rows // layout.stride
        self.state = tree_map(lambda x: zeros(x, lanes * self.starts), layout.state)
        small = {"action": self.action, "reward": self.reward, **self.extra}
        small |= {"discount": self.discount, "mask": self.mask}
        self.by_lane_obs = tree_map(lambda x: self.by_lane(x).numpy(), self.obs)
        self.by_lane_state = tree_map(self.by_lane, self.state)
        self.by_lane_small = {
            k: self.by_lane(torch.from_numpy(x)).numpy() for k, x in small.items()
        }

    def column(self, kind: Tensor) -> Tensor:
        """Memory for one part of all rows; the system provides it as it is first written to."""
        return zeros(kind, self.nowhere + 1)

    def write(self, lanes: slice, row: int, steps: Steps, state: Tree) -> None:
        """Store rows [T, B, ...] of the lanes, the first of them numbered `row`."""
        count = len(steps.mask)
        first = row % self.rows
        split = min(count, self.rows - first)
        for rows, slots in (
            (slice(0, split), slice(first, first + split)),
            (slice(split, count), slice(0, count - split)),
        ):
            if rows.start < rows.stop:
                self.write_slots(lanes, slots, rows, steps)
        if self.layout.state != () and row % self.layout.stride == 0:
            place = row // self.layout.stride % self.starts
            tree_map(lambda to, x: to[lanes, place].copy_(x), self.by_lane_state, state)

    def write_slots(self, lanes: slice, slots: slice, rows: slice, steps: Steps) -> None:
        """Store some rows in neighbouring slots."""

        def put(column: np.ndarray, values: Tensor) -> None:
            column[lanes, slots] = values.numpy()[rows].swapaxes(0, 1)

        tree_map(put, self.by_lane_obs, steps.obs)
        given = steps._asdict() | steps.extra
        for name, column in self.by_lane_small.items():
            put(column, given[name])

    def by_lane(self, column: Tensor) -> Tensor:
        """A column as [lanes, places a lane, ...]."""
        return column[: len(column) // self.lanes * self.lanes].unflatten(0, (self.lanes, -1))

    def places(self, lane: Indices, row: Indices) -> Indices:
        """Where rows stand in the columns; any shape."""
        return lane * self.rows + row % self.rows

    def take_obs(self, lane: Indices, row: Indices) -> Tree:
        """Observations at rows [T, B] of lanes [B], with their stacks of frames rebuilt."""
        index = self.places(lane, row)
        if self.layout.frames > 1:
            index = self.stacked(lane, row, index)
        obs = tree_map(lambda column: take(column, index), self.obs)
        return obs if self.layout.normalizer is None else self.scaled_obs(obs, index)

    def scaled_obs(self, obs: Tree, index: Indices) -> Tree:
        """Raw observations at places, scaled; frames before an episode's start stay zero."""
        assert self.layout.normalizer is not None
        scaled = self.layout.normalizer.obs(tree_map(lambda x: x.numpy(), obs))
        before_start = index == self.nowhere
        for leaf in tree_leaves(scaled):
            leaf[before_start] = 0
        return tree_map(torch.from_numpy, scaled)

    def take_reward(self, places: Indices) -> Floats:
        """Rewards at places of any shape, scaled where the rows are stored raw."""
        return self.scaled_reward(self.reward[places])

    def scaled_reward(self, reward: Floats) -> Floats:
        """Stored rewards of any shape as an agent is to see them now."""
        normalizer = self.layout.normalizer
        return reward if normalizer is None else normalizer.reward(reward)

    def stacked(self, lane: Indices, row: Indices, index: Indices) -> Indices:
        """Places of the frames in each observation, [T, B, frames], the newest last.

        An episode's first row follows a masked row; frames before it are zero.
        """
        stack = np.full((*index.shape, self.layout.frames), self.nowhere)
        stack[..., -1] = index
        playing = np.ones(index.shape, bool)
        for back in range(1, self.layout.frames):
            earlier = self.places(lane, row - back)
            playing &= (row >= back) & (self.mask[earlier] > 0)
            stack[..., -1 - back] = np.where(playing, earlier, self.nowhere)
        return stack

    def take_state(self, lane: Indices, row: Indices) -> Tree:
        """Recurrent state, as it was stored, before rows [B] that are multiples of the stride."""
        index = lane * self.starts + row // self.layout.stride % self.starts
        return tree_map(lambda column: take(column, index), self.state)

    def nbytes(self) -> int:
        """Memory that all columns take when full."""
        small = (self.action, self.reward, self.discount, self.mask, *self.extra.values())
        large = tree_leaves((self.obs, self.state))
        return sum(x.nbytes for x in small) + sum(map(bytes_of, large))


def zeros(kind: Tensor, count: int) -> Tensor:
    """`count` of a kind of tensor. NumPy's, for torch would write to all of it."""
    dtype = torch.empty(0, dtype=kind.dtype).numpy().dtype
    return torch.from_numpy(np.zeros((count, *kind.shape), dtype))


def take(column: Tensor, index: Indices) -> Tensor:
    """Entries of a column at an index of any shape."""
    if index.size * column.nbytes // len(column) <= SMALL_BYTES:
        return torch.from_numpy(column.numpy().take(index, 0))
    flat = torch.from_numpy(np.ascontiguousarray(index).reshape(-1))
    return column.index_select(0, flat).view(*index.shape, *column.shape[1:])


def row_like(space: Any) -> Tree:
    """A space's single observation as meta tensors."""
    arrays = create_empty_array(space, n=1)
    return tree_map(lambda x: torch.as_tensor(x)[0].to("meta"), arrays)
