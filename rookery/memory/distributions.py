"""Distributions over the stored windows: uniform, and prioritized by a sum tree."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rookery.errors import Diverged

FAN = 16
"""Children of a node of the sum tree: many, so that there are few levels, each of which costs a few
NumPy calls."""
WIDEST_TOP = 4_096
"""Largest width of the top level, which is searched as a whole instead of adding a level."""

SMALLEST_PRIORITY = 1e-6
"""Lower limit of priorities: a window of priority 0 would never be drawn and updated again."""

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


def annealed(start: float, end: float | None, done: float) -> float:
    """Return start + done (end - start) for the finished part `done` of a run; without an end,
    start."""
    return start if end is None else start + min(done, 1.0) * (end - start)


class Uniform:
    """All windows with equal probability."""

    constant = True
    """True if priorities have no effect."""

    def __init__(self, lanes: int, starts: int):
        self.lanes, self.starts = lanes, starts
        self.present = np.zeros(lanes * starts, bool)
        self.reached = 0
        """Upper bound of the places in use: no lane has a window at this place or a later one."""
        self.count = 0
        """Number of windows that can be drawn."""

    def set_progress(self, done: float) -> None:
        """Set the finished part of the run, 0 to 1; without effect."""

    @property
    def total(self) -> float:
        """Sum of the unnormalised probabilities of all windows."""
        return self.count

    def put(self, index: Indices, priority: Floats | None) -> None:
        """Add windows."""
        self.count += len(index) - int(np.count_nonzero(self.present[index]))
        self.present[index] = True
        self.reached = max(self.reached, int((index % self.starts).max(initial=-1)) + 1)

    def drop(self, index: Indices) -> None:
        """Remove windows."""
        self.count -= int(np.count_nonzero(self.present[index]))
        self.present[index] = False

    def reweigh(self, index: Indices, priority: Floats) -> None:
        """Set new priorities of windows; without effect."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Indices, Floats]:
        """Return `count` windows, drawn with replacement, and their importance weights.

        Rejection sampling: draw places uniformly, and again where there is no window.
        """
        reached = self.lanes * self.reached
        share = max(self.count / reached, 1e-3)
        index = np.empty(0, np.int64)
        while len(index) < count:
            tries = int((count - len(index)) / share * 1.1) + 8
            at = torch.randint(reached, (tries,), generator=generator).numpy()
            if self.reached < self.starts:
                # Places were counted over the used part of each lane only.
                lane, place = np.divmod(at, self.reached)
                at = lane * self.starts + place
            index = np.concatenate([index, at[self.present[at]]])
        return index[:count], np.ones(count)

    def nbytes(self) -> int:
        """Return the size in memory."""
        return self.present.nbytes


class SumTree:
    """Weights [size], above them the sums of every 16, above these the sums of every 16, and so on.

    Invariant: every sum equals the sum of its children. After a change the sums above are
    recomputed from their children, so that rounding errors do not accumulate.
    """

    def __init__(self, size: int):
        self.size = size
        self.levels = [np.zeros(padded(size))]
        while len(self.levels[-1]) > WIDEST_TOP:
            self.levels.append(np.zeros(padded(len(self.levels[-1]) // FAN)))
        if len(self.levels) == 1:
            self.levels.append(np.zeros(len(self.levels[0]) // FAN))

    @property
    def weights(self) -> Floats:
        """The weights of all places; read only."""
        return self.levels[0][: self.size]

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.levels[-1].sum())

    def set(self, index: Indices, weight: Floats | float) -> None:
        """Set the weights of the places `index`; for a repeated place the last one counts."""
        self.levels[0][index] = weight
        for below, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index // FAN
            level[index] = below.reshape(-1, FAN).take(index, axis=0).sum(axis=1)

    def draw(self, at: Floats) -> Indices:
        """Return the places at the fractions `at` of the total weight, each in [0, 1).

        For uniform fractions a place has the probability weight / total; a place of weight 0 is
        never returned.
        """
        sums = np.cumsum(self.levels[-1])
        rest = limit_below(at * sums[-1], sums[-1])
        index = np.searchsorted(sums, rest, side="right")
        rest = rest - np.where(index > 0, sums[index - 1], 0.0)
        lanes = np.arange(len(at))
        for level in self.levels[-2::-1]:
            sums = np.cumsum(level.reshape(-1, FAN).take(index, axis=0), axis=1)
            rest = limit_below(rest, sums[:, -1])
            child = (sums > rest[:, None]).argmax(axis=1)
            rest = rest - np.where(child > 0, sums[lanes, child - 1], 0.0)
            index = index * FAN + child
        return index

    def check(self) -> None:
        """Raise unless every sum is that of its children and no weight is negative."""
        assert (self.levels[0] >= 0).all(), "a weight is negative"
        for below, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            sums = below.reshape(-1, FAN).sum(axis=1)
            wrong = (level[: len(sums)] != sums).nonzero()[0]
            assert not len(wrong), f"sum {wrong[:1]} is not that of its children"


def padded(size: int) -> int:
    """Return the next multiple of FAN."""
    return -(-size // FAN) * FAN


def limit_below(values: Floats, bound: Floats | float) -> Floats:
    """Return `values` limited below `bound`, so that rounding cannot lead past the last child."""
    return np.minimum(values, np.nextafter(bound, 0.0))


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
        """Add windows; without a priority they get the largest one so far."""
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

    def draw(self, count: int, generator: torch.Generator) -> tuple[Indices, Floats]:
        """Return windows and importance weights (N P)^-beta, not yet divided by the largest.

        Stratified sampling: draw one window from each of `count` equal parts of the total.
        """
        jitter = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        index = self.tree.draw((np.arange(count) + jitter) / count)
        probability = self.tree.weights[index] / self.tree.total
        return index, (self.count * probability) ** -self.beta

    def nbytes(self) -> int:
        return sum(level.nbytes for level in self.tree.levels)


Distribution = Uniform | Prioritized
"""The set of windows that can be drawn, and their probabilities."""
