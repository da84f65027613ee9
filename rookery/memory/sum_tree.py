"""A sum tree: samples places in proportion to their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAN = 16
"""Children of a node: many, so that there are few levels, each of which costs a few NumPy calls."""
WIDEST_TOP = 4_096
"""Largest width of the top level, which is searched as a whole instead of adding a level."""

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


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
