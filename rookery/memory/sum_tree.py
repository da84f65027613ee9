"""A tree of sums over weights, from which places are drawn in proportion to their weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAN = 16
"""Children of a node: many, so that levels are few; each costs a handful of array operations."""
WIDEST_TOP = 4_096
"""The uppermost level is searched as a whole; up to this width that is cheaper than a level."""

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class SumTree:
    """Weights [size], and above them the sums of every 16, of every 16 of those, and so on.

    A changed weight is followed by recomputing the sums above it from their children, so that no
    rounding error is ever carried along.
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
        """The weight of every place, to be read."""
        return self.levels[0][: self.size]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.levels[-1].sum())

    def set(self, index: Indices, weight: Floats | float) -> None:
        """Give the places `index` new weights; of a place named twice the last counts."""
        self.levels[0][index] = weight
        for below, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index // FAN
            level[index] = below.reshape(-1, FAN).take(index, axis=0).sum(axis=1)

    def draw(self, at: Floats) -> Indices:
        """The places at the fractions `at` of the total weight, each in [0, 1).

        A place is found with the probability that its weight has in the total, and one of weight
        0 never.
        """
        sums = np.cumsum(self.levels[-1])
        rest = below(at * sums[-1], sums[-1])
        index = np.searchsorted(sums, rest, side="right")
        rest = rest - np.where(index > 0, sums[index - 1], 0.0)
        lanes = np.arange(len(at))
        for level in self.levels[-2::-1]:
            sums = np.cumsum(level.reshape(-1, FAN).take(index, axis=0), axis=1)
            rest = below(rest, sums[:, -1])
            child = (sums > rest[:, None]).argmax(axis=1)
            rest = rest - np.where(child > 0, sums[lanes, child - 1], 0.0)
            index = index * FAN + child
        return index

    def check(self) -> None:
        """Raise unless every sum is that of its children and no weight is negative."""
        assert (self.levels[0] >= 0).all(), "a weight is negative"
        for below_, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            sums = below_.reshape(-1, FAN).sum(axis=1)
            wrong = (level[: len(sums)] != sums).nonzero()[0]
            assert not len(wrong), f"sum {wrong[:1]} is not that of its children"


def padded(size: int) -> int:
    """The next multiple of the fan."""
    return -(-size // FAN) * FAN


def below(values: Floats, bound: Floats | float) -> Floats:
    """`values`, but less than `bound`: rounding must not lead past the last child."""
    return np.minimum(values, np.nextafter(bound, 0.0))
