"""Checks that the actions of a request are in the action space."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from rookery_server.messages import Refused
from rookery_server.spaces import Description, Leaf, filled, leaves, nested


class Actions:
    """Reads and checks batches of actions of a described space."""

    def __init__(self, plain: Description, bounds: Sequence[np.ndarray], envs: int):
        self._plain = plain
        self._checks = [LeafCheck(leaf, bounds, envs) for leaf in leaves(plain)]

    def read(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return copies of the actions, nested like the space."""
        if len(arrays) != len(self._checks):
            raise Refused(
                "action", f"expected {len(self._checks)} arrays of actions, got {len(arrays)}"
            )
        checked = [check.read(array) for check, array in zip(self._checks, arrays)]
        return nested(self._plain, iter(checked))


class LeafCheck:
    """Dtype, shape and range of the actions of one leaf."""

    def __init__(self, leaf: Leaf, bounds: Sequence[np.ndarray], envs: int):
        self.dtype = leaf.dtype
        self.shape = (envs, *leaf.shape)
        self.low, self.high = limits(leaf, bounds)

    def read(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of `array` if it is valid."""
        if array.dtype != self.dtype or array.shape != self.shape:
            raise Refused(
                "action",
                f"expected actions {self.dtype.str} {list(self.shape)}, "
                f"got {array.dtype.str} {list(array.shape)}",
            )
        plain = array.view(np.uint8) if array.dtype == bool else array
        if self.low is not None and not ((plain >= self.low) & (plain <= self.high)).all():
            raise Refused("action", "an action is outside its space")
        if plain.dtype.kind == "f" and np.isnan(plain).any():
            raise Refused("action", "an action is NaN")
        return array.copy()


def limits(leaf: Leaf, bounds: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Return the smallest and the largest action; (None, None) for a Box, which checks itself."""
    plain = leaf.plain
    if plain["type"] == "Discrete":
        return plain["start"], plain["start"] + plain["n"] - 1
    if plain["type"] == "MultiDiscrete":
        integer = np.dtype(np.int64)
        start = filled(plain["start"], bounds, leaf.shape, integer)
        return start, start + filled(plain["nvec"], bounds, leaf.shape, integer) - 1
    if plain["type"] == "MultiBinary" or leaf.dtype == bool:
        return 0, 1
    return None, None
