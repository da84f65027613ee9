"""Which of the stored windows are drawn."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch

from rookery.errors import Diverged
from rookery.memory.sum_tree import Floats, Indices, SumTree

SMALLEST_PRIORITY = 1e-6
"""A window of priority 0 would never be drawn again, and so never get another."""


def annealed(start: float, end: float | None, done: float) -> float:
    """What rises or falls linearly from start to end over a run, once the part `done` of it is
    over; without an end it stays."""
    return start if end is None else start + min(done, 1.0) * (end - start)


class Draw(NamedTuple):
    """Windows drawn, [B]."""

    places: Indices
    weight: Floats
    """(N P)^-beta, not yet divided by the largest."""


class Distribution(Protocol):
    """Knows which windows there are, and how likely each is."""

    constant: bool
    """Whether priorities change nothing."""
    count: int
    """How many windows there are."""

    def set_progress(self, done: float) -> None:
        """Note the part of the run that is done, 0 to 1."""
        ...

    @property
    def total(self) -> float:
        """What the probability of each is a share of."""
        ...

    def put(self, index: Indices, priority: Floats | None) -> None:
        """Windows that can be drawn now; without a priority they get the largest so far."""
        ...

    def drop(self, index: Indices) -> None:
        """Windows that can no longer be drawn."""
        ...

    def reweigh(self, index: Indices, priority: Floats) -> None:
        """New priorities of windows that can be drawn."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """So many windows, with replacement."""
        ...

    def nbytes(self) -> int:
        """Memory that it takes."""
        ...


class Uniform:
    """Every window alike."""

    constant = True

    def __init__(self, lanes: int, starts: int):
        self.lanes, self.starts = lanes, starts
        self.there = np.zeros(lanes * starts, bool)
        self.reached = 0
        """No lane has a window at this place of its own or a later one."""
        self.count = 0

    def set_progress(self, done: float) -> None:
        """Nothing changes over the run."""

    @property
    def total(self) -> float:
        return self.count

    def put(self, index: Indices, priority: Floats | None) -> None:
        self.count += len(index) - int(np.count_nonzero(self.there[index]))
        self.there[index] = True
        self.reached = max(self.reached, int((index % self.starts).max(initial=-1)) + 1)

    def drop(self, index: Indices) -> None:
        self.count -= int(np.count_nonzero(self.there[index]))
        self.there[index] = False

    def reweigh(self, index: Indices, priority: Floats) -> None:
        """Nothing: all are alike."""

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Places are drawn evenly, and again where there is no window."""
        reached = self.lanes * self.reached
        share = max(self.count / reached, 1e-3)
        index = np.empty(0, np.int64)
        while len(index) < count:
            tries = int((count - len(index)) / share * 1.1) + 8
            at = torch.randint(reached, (tries,), generator=generator).numpy()
            at = at if self.reached == self.starts else self.spread(at)
            index = np.concatenate([index, at[self.there[at]]])
        return Draw(index[:count], np.ones(count))

    def nbytes(self) -> int:
        return self.there.nbytes

    def spread(self, at: Indices) -> Indices:
        """The places, counted over the lanes' reached parts only, among all places."""
        lane, place = np.divmod(at, self.reached)
        return lane * self.starts + place


class Prioritized:
    """In proportion to priority^alpha, with importance weights (N P)^-beta (Schaul et al. 2016);
    beta rises linearly to `beta_end` over the run, if that is given."""

    constant = False

    def __init__(self, places: int, alpha: float, beta: float, beta_end: float | None = None):
        self.tree = SumTree(places)
        self.alpha = alpha
        self.beta = self.beta_start = beta
        self.beta_end = beta_end
        self.largest = 1.0
        self.count = 0

    def set_progress(self, done: float) -> None:
        self.beta = annealed(self.beta_start, self.beta_end, done)

    @property
    def total(self) -> float:
        return self.tree.total

    def put(self, index: Indices, priority: Floats | None) -> None:
        self.count += len(index) - int(np.count_nonzero(self.tree.weights[index]))
        given = np.full(len(index), self.largest) if priority is None else priority
        self.tree.set(index, self.weights_of(given))

    def drop(self, index: Indices) -> None:
        self.count -= int(np.count_nonzero(self.tree.weights[index]))
        self.tree.set(index, 0.0)

    def reweigh(self, index: Indices, priority: Floats) -> None:
        self.tree.set(index, self.weights_of(priority))

    def weights_of(self, priority: Floats) -> Floats:
        """Weights in the tree, all of them positive."""
        if not np.isfinite(priority).all():
            raise Diverged("training diverged: a priority is not finite; lower algo.learning_rate")
        self.largest = max(self.largest, float(priority.max(initial=0.0)))
        return np.maximum(priority, SMALLEST_PRIORITY) ** self.alpha

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """One from each of `count` equal parts of the total, which spreads them evenly."""
        jitter = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        index = self.tree.draw((np.arange(count) + jitter) / count)
        probability = self.tree.weights[index] / self.tree.total
        return Draw(index, (self.count * probability) ** -self.beta)

    def nbytes(self) -> int:
        return sum(level.nbytes for level in self.tree.levels)
