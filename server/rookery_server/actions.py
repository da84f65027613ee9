"""Actions out of a request: refused unless they are in their space."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from rookery_server.spaces import Leaf, Plain, filled, leaves, nested
from rookery_server.wire import Refused


class Actions:
    """Reads batches of actions of a described space."""

    def __init__(self, plain: Plain, bounds: Sequence[np.ndarray], envs: int):
        self._plain = plain
        self._checks = [Check(leaf, bounds, envs) for leaf in leaves(plain)]

    def read(self, arrays: Sequence[np.ndarray]) -> Any:
        """Actions nested like the space, in memory of their own."""
        if len(arrays) != len(self._checks):
            raise Refused("action", f"actions are {len(self._checks)} arrays, not {len(arrays)}")
        checked = [check.read(array) for check, array in zip(self._checks, arrays)]
        return nested(self._plain, iter(checked))


class Check:
    """What the actions of one leaf must be like."""

    def __init__(self, leaf: Leaf, bounds: Sequence[np.ndarray], envs: int):
        self.dtype = leaf.dtype
        self.shape = (envs, *leaf.shape)
        self.low, self.high = limits(leaf, bounds)

    def read(self, array: np.ndarray) -> np.ndarray:
        """A copy of `array`, if it is fit."""
        if array.dtype != self.dtype or array.shape != self.shape:
            raise Refused(
                "action",
                f"actions are {self.dtype.str} {list(self.shape)}, "
                f"not {array.dtype.str} {list(array.shape)}",
            )
        plain = array.view(np.uint8) if array.dtype == bool else array
        if self.low is not None and not ((plain >= self.low) & (plain <= self.high)).all():
            raise Refused("action", "an action is outside its space")
        if plain.dtype.kind == "f" and np.isnan(plain).any():
            raise Refused("action", "an action is NaN")
        return array.copy()


def limits(leaf: Leaf, bounds: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """The least and the greatest action; (None, None) where the environment sees to it."""
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
