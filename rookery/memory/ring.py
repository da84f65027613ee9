"""A ring buffer of rows of experience in preallocated memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from rookery.data.steps import Steps
from rookery.data.tree import Tree, tree_leaves, tree_map
from rookery.memory.distributions import Floats, Indices

SMALL_BYTES = 1 << 16
"""Up to this size NumPy gathers faster; beyond it torch's threads share the work."""


class RowNormalizer(Protocol):
    """Scales raw observations and rewards of an environment by the current running statistics."""

    def obs(self, rows: Tree) -> Tree:
        """Return observations scaled; NumPy arrays with any leading axes."""
        ...

    def reward(self, rows: Floats) -> Floats:
        """Return rewards of any shape scaled."""
        ...

    def raw_leaves(self) -> dict[tuple[Any, ...], Space]:
        """Return the spaces of the normalised leaves before normalisation, by path."""
        ...

    def follow(self, shared: Mapping[str, Any]) -> None:
        """Use the statistics that another process shares, by name."""
        ...


@dataclass(frozen=True)
class Layout:
    """Shape and dtype of the parts of a row, as tensors of one row on the device "meta"."""

    obs: Tree
    """An observation, or one frame if observations are stacks of frames."""
    action: Tensor
    extra: dict[str, Tensor]
    """Values that the algorithm recorded while acting."""
    state: Tree = ()
    """Recurrent state, stored only with every `stride`-th row."""
    frames: int = 1
    """Frames in an observation; stacks are rebuilt when rows are read."""
    stride: int = 1
    normalizer: RowNormalizer | None = None
    """Scales rows when they are read: they are stored raw, so that old rows are scaled by the
    current statistics too; None: no scaling."""

    def row_bytes(self) -> float:
        """Return the size of a row, including its share of the stored state."""
        row = [*tree_leaves((self.obs, self.action, self.extra)), *small_columns()]
        return sum(map(bytes_of, row)) + sum(map(bytes_of, tree_leaves(self.state))) / self.stride


def small_columns() -> tuple[Tensor, ...]:
    """Return reward, discount and mask of a row as meta tensors."""
    flag = torch.empty((), dtype=torch.uint8, device="meta")
    return torch.empty((), device="meta"), flag, flag


def bytes_of(tensor: Tensor) -> int:
    """Return the size of a tensor of this shape and dtype."""
    return tensor.numel() * tensor.element_size()


class Ring:
    """The newest `rows` rows of each of `lanes` environments.

    Rows of a lane are numbered from 0 on and never renumbered; row r is in slot r modulo `rows`.
    Invariant: the additional place `zero_row` stays zero, for frames before an episode's start.
    """

    def __init__(self, layout: Layout, lanes: int, rows: int):
        self.layout = layout
        self.lanes = lanes
        self.rows = rows
        self.zero_row = lanes * rows
        self.obs = tree_map(self.column, layout.obs)
        # NumPy reads the small columns, since it is faster for a few numbers.
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
        """Return memory for one part of all rows; pages are allocated when first written."""
        return zeros(kind, self.zero_row + 1)

    def write(self, lanes: slice, row: int, steps: Steps, state: Tree) -> None:
        """Store rows [T, B, ...] of the lanes, the first of them numbered `row`."""
        given = steps._asdict() | steps.extra
        count = len(steps.mask)
        first = row % self.rows
        split = min(count, self.rows - first)
        for rows, slots in (
            (slice(0, split), slice(first, first + split)),
            (slice(split, count), slice(0, count - split)),
        ):
            if rows.start < rows.stop:
                tree_map(partial(put, lanes, slots, rows), self.by_lane_obs, steps.obs)
                for name, column in self.by_lane_small.items():
                    put(lanes, slots, rows, column, given[name])
        if self.layout.state != () and row % self.layout.stride == 0:
            place = row // self.layout.stride % self.starts
            tree_map(lambda to, x: to[lanes, place].copy_(x), self.by_lane_state, state)

    def by_lane(self, column: Tensor) -> Tensor:
        """Return a view [lanes, places per lane, ...] of a column."""
        return column[: len(column) // self.lanes * self.lanes].unflatten(0, (self.lanes, -1))

    def places(self, lane: Indices, row: Indices) -> Indices:
        """Return the places of rows in the columns; any shape."""
        return lane * self.rows + row % self.rows

    def take_obs(self, lane: Indices, row: Indices) -> Tree:
        """Return the observations at rows [T, B] of lanes [B], with stacks of frames rebuilt, and
        scaled if there is a normalizer; frames before an episode's start are zero."""
        index = self.places(lane, row)
        if self.layout.frames > 1:
            index = self.stacked(lane, row, index)
        obs = tree_map(lambda column: take_entries(column, index), self.obs)
        if self.layout.normalizer is None:
            return obs
        scaled = self.layout.normalizer.obs(tree_map(lambda x: x.numpy(), obs))
        before_start = index == self.zero_row
        for leaf in tree_leaves(scaled):
            leaf[before_start] = 0
        return tree_map(torch.from_numpy, scaled)

    def scaled_reward(self, reward: Floats) -> Floats:
        """Return stored rewards of any shape, scaled if there is a normalizer."""
        normalizer = self.layout.normalizer
        return reward if normalizer is None else normalizer.reward(reward)

    def stacked(self, lane: Indices, row: Indices, index: Indices) -> Indices:
        """Return the places of the frames in each observation, [T, B, frames], the newest last.

        An episode's first row follows a masked row; frames before it are zero.
        """
        stack = np.full((*index.shape, self.layout.frames), self.zero_row)
        stack[..., -1] = index
        playing = np.ones(index.shape, bool)
        for back in range(1, self.layout.frames):
            earlier = self.places(lane, row - back)
            playing &= (row >= back) & (self.mask[earlier] > 0)
            stack[..., -1 - back] = np.where(playing, earlier, self.zero_row)
        return stack

    def take_state(self, lane: Indices, row: Indices) -> Tree:
        """Return the stored recurrent state before rows [B], which are multiples of the stride."""
        index = lane * self.starts + row // self.layout.stride % self.starts
        return tree_map(lambda column: take_entries(column, index), self.state)

    def nbytes(self) -> int:
        """Return the size of all columns when full."""
        small = (self.action, self.reward, self.discount, self.mask, *self.extra.values())
        large = tree_leaves((self.obs, self.state))
        return sum(x.nbytes for x in small) + sum(map(bytes_of, large))


def put(lanes: slice, slots: slice, rows: slice, column: np.ndarray, values: Tensor) -> None:
    """Store the rows `rows` of values [T, B, ...] in slots of a column [lanes, slots, ...]."""
    column[lanes, slots] = values.numpy()[rows].swapaxes(0, 1)


def zeros(kind: Tensor, count: int) -> Tensor:
    """Return zeros [count, *kind.shape]; NumPy's, since torch's would touch all of the memory."""
    dtype = torch.empty(0, dtype=kind.dtype).numpy().dtype
    return torch.from_numpy(np.zeros((count, *kind.shape), dtype))


def take_entries(column: Tensor, index: Indices) -> Tensor:
    """Return the entries of a column at an index of any shape."""
    if index.size * column.nbytes // len(column) <= SMALL_BYTES:
        return torch.from_numpy(column.numpy().take(index, 0))
    flat = torch.from_numpy(np.ascontiguousarray(index).reshape(-1))
    return column.index_select(0, flat).view(*index.shape, *column.shape[1:])


def row_like(space: Space) -> Tree:
    """Return one observation of a space as meta tensors."""
    arrays = create_empty_array(space, n=1)
    return tree_map(lambda x: torch.as_tensor(x)[0].to("meta"), arrays)
