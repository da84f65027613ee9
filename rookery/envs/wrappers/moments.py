"""Running mean and variance that are bitwise equal on all processes after a merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RunningMoments:
    """Mean and variance of all samples, elementwise over `shape`, in float64.

    Samples fall in two parts: `merged`, equal on every process, and `pending`, those that this
    process added since the last merge. `mean`, `var` and `count` cover both.
    """

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape = shape
        self._size = int(np.prod(shape))
        self._merged = self._empty()
        self._pending = self._empty()
        self._refresh()

    def update(self, batch: Array) -> None:
        """Add a batch of samples [N, *shape]."""
        rows = np.asarray(batch, np.float64).reshape(-1, self._size)
        if not len(rows):
            return
        added = self._empty()
        added[0] = len(rows)
        mean = np.add.reduce(rows, 0, out=added[1 : 1 + self._size])
        mean /= len(rows)
        rows = rows - mean
        np.add.reduce(rows * rows, 0, out=added[1 + self._size :])
        self._pending = _combine(self._pending, added)
        self._refresh()

    def take_pending(self) -> Array:
        """Return the moments of the pending samples as a flat vector, and clear them.

        Pass the vectors of all processes, including this one's, to `merge`.
        """
        pending, self._pending = self._pending, self._empty()
        self._refresh()
        return pending

    def merge(self, pendings: Sequence[Array]) -> None:
        """Add the pending vectors of all processes, in the same order on each."""
        for pending in pendings:
            self._merged = _combine(self._merged, np.asarray(pending, np.float64))
        self._refresh()

    def shared(self) -> Array:
        """Return the merged moments as a flat vector."""
        return self._merged.copy()

    def follow(self, shared: Array) -> None:
        """Replace the merged moments by another process's; pending samples stay."""
        self._merged = np.array(shared, np.float64)
        self._refresh()

    def state(self) -> dict[str, Array]:
        """Return the checkpoint contents: after `load` the statistics continue bitwise equal."""
        return {"merged": self._merged.copy(), "pending": self._pending.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        self._merged = np.array(state["merged"], np.float64).reshape(1 + 2 * self._size)
        self._pending = np.array(state["pending"], np.float64).reshape(1 + 2 * self._size)
        self._refresh()

    def _empty(self) -> Array:
        return np.zeros(1 + 2 * self._size)

    def _refresh(self) -> None:
        total = _combine(self._merged, self._pending)
        self.count = float(total[0])
        self.mean = total[1 : 1 + self._size].reshape(self.shape)
        # The variance of one sample is 0; dividing by it would make the first rewards huge.
        too_few = self.count < 2
        variance = np.ones(self._size) if too_few else total[1 + self._size :] / self.count
        self.var = variance.reshape(self.shape)


def _combine(a: Array, b: Array) -> Array:
    """Return the moments [1 + 2n] (count, means, sums of squared deviations) of two sample sets.

    With n = n_a + n_b and d = mean_b - mean_a (Chan et al. 1979): mean = mean_a + d n_b / n and
    M2 = M2_a + M2_b + d^2 n_a n_b / n.
    """
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
