"""Running mean and variance, mergeable over processes without a bit of difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RunningMoments:
    """Mean and variance of everything seen, elementwise over `shape`, in float64.

    What is known falls in two parts: `merged`, which every process shares, and `pending`, what
    this process has seen since the last merge. `mean`, `var` and `count` cover both.
    """

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape = shape
        self._size = int(np.prod(shape))
        self._merged = self._empty()
        self._pending = self._empty()
        self._refresh()

    def update(self, batch: Array) -> None:
        """Take in a batch [N, *shape]."""
        rows = np.asarray(batch, np.float64).reshape(-1, self._size)
        if not len(rows):
            return
        seen = self._empty()
        seen[0] = len(rows)
        mean = np.add.reduce(rows, 0, out=seen[1 : 1 + self._size])
        mean /= len(rows)
        rows = rows - mean
        np.add.reduce(rows * rows, 0, out=seen[1 + self._size :])
        self._pending = _combine(self._pending, seen)
        self._refresh()

    def take_pending(self) -> Array:
        """What was seen since the last merge, as a flat vector; this process forgets it.

        Hand the vectors of all processes, this one's among them, to `merge`.
        """
        pending, self._pending = self._pending, self._empty()
        self._refresh()
        return pending

    def merge(self, pendings: Sequence[Array]) -> None:
        """Take in the pending vectors of all processes, in the same order on each."""
        for pending in pendings:
            self._merged = _combine(self._merged, np.asarray(pending, np.float64))
        self._refresh()

    def shared(self) -> Array:
        """What every process shares, as a flat vector."""
        return self._merged.copy()

    def follow(self, shared: Array) -> None:
        """Take over what another process shares; what is pending here stays so."""
        self._merged = np.array(shared, np.float64)
        self._refresh()

    def state(self) -> dict[str, Array]:
        """All that `load` needs to go on bitwise as if never stopped."""
        return {"merged": self._merged.copy(), "pending": self._pending.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned."""
        self._merged = np.array(state["merged"], np.float64).reshape(1 + 2 * self._size)
        self._pending = np.array(state["pending"], np.float64).reshape(1 + 2 * self._size)
        self._refresh()

    def _empty(self) -> Array:
        return np.zeros(1 + 2 * self._size)

    def _refresh(self) -> None:
        total = _combine(self._merged, self._pending)
        self.count = float(total[0])
        self.mean = total[1 : 1 + self._size].reshape(self.shape)
        # One sample has no spread to speak of; dividing by it would blow the first rewards up.
        unknown = self.count < 2
        spread = np.ones(self._size) if unknown else total[1 + self._size :] / self.count
        self.var = spread.reshape(self.shape)


def _combine(a: Array, b: Array) -> Array:
    """Chan et al. (1979): moments [1 + 2n] (count, means, squared deviations) of a union."""
    if b[0] == 0:
        return a
    if a[0] == 0:
        return b
    size = len(a) // 2
    share = b[0] / (a[0] + b[0])
    delta = b[1 : 1 + size] - a[1 : 1 + size]
    total = a + b
    total[1 : 1 + size] = a[1 : 1 + size] + delta * share
    total[1 + size :] += delta * delta * (a[0] * share)
    return total
