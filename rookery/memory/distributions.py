"""Distributions over the stored windows: uniform and prioritized."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch

from rookery.errors import Diverged
from rookery.memory.sum_tree import Floats, Indices, SumTree

SMALLEST_PRIORITY = 1e-6
"""Lower limit of priorities: a window of priority 0 would never be drawn and updated again."""


def annealed(start: float, end: float | None, done: float) -> float:
    """Return start + done (end - start) for the finished part `done` of a run; without an end,
    start."""
    return start if end is None else start + min(done, 1.0) * (end - start)


class Draw(NamedTuple):
    """Sampled windows, [B]."""

    places: Indices
    """Index of each window in the distribution."""
    weight: Floats
    """Importance weights (N P)^-beta, not yet divided by the largest."""


class Distribution(Protocol):
    """The set of windows that can be drawn, and their probabilities."""

    constant: bool
    """True if priorities have no effect."""
    count: int
    """Number of windows that can be drawn."""

    def set_progress(self, done: float) -> None:
        """Set the finished part of the run, 0 to 1."""
        ...

    @property
    def total(self) -> float:
        """Sum of the unnormalised probabilities of all windows."""
        ...

    def put(self, index: Indices, priority: Floats | None) -> None:
        """Add windows; without a priority they get the largest one so far."""
        ...

    def drop(self, index: Indices) -> None:
        """Remove windows."""
        ...

    def reweigh(self, index: Indices, priority: Floats) -> None:
        """Set new priorities of windows."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Draw `count` windows with replacement."""
        ...

    def nbytes(self) -> int:
        """Return the size in memory."""
        ...


class Uniform:
    """All windows with equal probability."""

    constant = True

    def __init__(self, lanes: int, starts: int):
        self.lanes, self.starts = lanes, starts
        self.present = np.zeros(lanes * starts, bool)
        self.reached = 0
        """Upper bound of the places in use: no lane has a window at this place or a later one."""
        self.count = 0

    def set_progress(self, done: float) -> None:
        """Do nothing: the distribution has no schedule."""

    @property
    def total(self) -> float:
        return self.count

    def put(self, index: Indices, priority: Floats | None) -> None:
        self.count += len(index) - int(np.count_nonzero(self.present[index]))
        self.present[index] = True
        self.reached = max(self.reached, int((index % self.starts).max(initial=-1)) + 1)

    def drop(self, index: Indices) -> None:
        self.count -= int(np.count_nonzero(self.present[index]))
        self.present[index] = False

    def reweigh(self, index: Indices, priority: Floats) -> None:
        """Do nothing: priorities have no effect."""

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Rejection sampling: draw places uniformly, and again where there is no window."""
        reached = self.lanes * self.reached
        share = max(self.count / reached, 1e-3)
        index = np.empty(0, np.int64)
        while len(index) < count:
            tries = int((count - len(index)) / share * 1.1) + 8
            at = torch.randint(reached, (tries,), generator=generator).numpy()
            at = at if self.reached == self.starts else self.spread(at)
            index = np.concatenate([index, at[self.present[at]]])
        return Draw(index[:count], np.ones(count))

    def nbytes(self) -> int:
        return self.present.nbytes

    def spread(self, at: Indices) -> Indices:
        """Return the index of places that are counted over the used part of each lane only."""
        lane, place = np.divmod(at, self.reached)
        return lane * self.starts + place


class Prioritized:
    """Windows in proportion to priority^alpha, with importance weights (N P)^-beta.

    Schaul et al. 2016, eq. 1 and section 3.4. With `beta_end`, beta changes linearly to it over
    the run.
    """

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
        """Return priority^alpha for the tree, always positive."""
        if not np.isfinite(priority).all():
            raise Diverged("training diverged: a priority is not finite; lower algo.learning_rate")
        self.largest = max(self.largest, float(priority.max(initial=0.0)))
        return np.maximum(priority, SMALLEST_PRIORITY) ** self.alpha

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Stratified sampling: draw one window from each of `count` equal parts of the total."""
        jitter = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        index = self.tree.draw((np.arange(count) + jitter) / count)
        probability = self.tree.weights[index] / self.tree.total
        return Draw(index, (self.count * probability) ** -self.beta)

    def nbytes(self) -> int:
        return sum(level.nbytes for level in self.tree.levels)
