"""Random values of a space, many at once and quickly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.envs.wrappers.moments import Array

Draw = Callable[[np.random.Generator, int], Any]
"""From a generator and a count n to a tree of new arrays [n, ...]."""


def drawer(space: Space[Any]) -> Draw:
    """What draws observations of a space.

    Floats without bounds are standard normal, everything else is uniform: floats between their
    bounds, whole numbers, codes and bits over all that the space contains.
    """
    if isinstance(space, spaces.Dict):
        named = {key: drawer(part) for key, part in space.spaces.items()}
        return lambda random, n: {key: draw(random, n) for key, draw in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [drawer(part) for part in space.spaces]
        return lambda random, n: tuple([draw(random, n) for draw in parts])
    if isinstance(space, spaces.Box):
        real = np.issubdtype(space.dtype, np.floating)
        return floats(space) if real else numbers(space, *ends(space))
    if isinstance(space, spaces.Discrete):
        return lambda random, n: codes(random, space.n, (n,))
    if isinstance(space, spaces.MultiDiscrete):
        count = cardinality(space) or space.nvec
        return lambda random, n: codes(random, count, (n, *space.nvec.shape))
    assert isinstance(space, spaces.MultiBinary)
    return numbers(space, 0, 1)


def floats(space: spaces.Box) -> Draw:
    """Normal without bounds, else uniform between them."""
    # The generator knows two precisions; half precision is rounded from the single one.
    kind: Any = np.float64 if space.dtype == np.float64 else np.float32
    low, high = kind(space.low.flat[0]), kind(space.high.flat[0])

    def normal(random: np.random.Generator, n: int) -> Array:
        drawn = random.standard_normal((n, *space.shape), kind)
        return drawn.astype(space.dtype, copy=False)

    def uniform(random: np.random.Generator, n: int) -> Array:
        share = random.random((n, *space.shape), kind)
        # A mean of the bounds: their distance may be more than a float can hold.
        drawn = low * (1 - share) + high * share
        return np.clip(drawn, low, high, out=drawn).astype(space.dtype, copy=False)

    return uniform if np.isfinite(low) else normal


def codes(random: np.random.Generator, count: Any, shape: tuple[int, ...]) -> Array:
    """Even draws from 0 to `count` - 1, in int64."""
    # For some hundred values twice as quick as `integers`; 53 bits leave no bias to speak of.
    return (random.random(shape) * count).astype(np.int64)


def numbers(space: spaces.Box | spaces.MultiBinary, low: int, high: int) -> Draw:
    """Whole numbers from `low` to `high`, both included, drawn in the space's own type."""
    shape, dtype = space.shape, space.dtype
    return lambda random, n: random.integers(low, high, (n, *shape), dtype, endpoint=True)


def ends(space: spaces.Box) -> tuple[Any, Any]:
    """The bounds of a Box that has the same for all its entries."""
    return space.low.flat[0].item(), space.high.flat[0].item()


def cardinality(space: spaces.MultiDiscrete) -> int | None:
    """The number of codes if it is the same for all entries."""
    counts = space.nvec.flatten()
    return int(counts[0]) if (counts == counts[0]).all() else None


def take(tree: Any, rows: Any) -> Any:
    """Rows of every array of a tree: [P, ...] to [B, ...] by rows [B], or to [...] by a number."""
    if isinstance(tree, dict):
        return {key: take(part, rows) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([take(part, rows) for part in tree])
    return tree.take(rows, 0)
