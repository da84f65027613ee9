"""Fast random batches of observations of any space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.envs.wrappers.moments import Array

ValueDraw = Callable[[np.random.Generator, int], Any]
"""Function from a generator and a count n to a tree of new arrays [n, ...]."""


def drawer(space: Space[Any]) -> ValueDraw:
    """Return the function that draws observations of a space.

    Floats without bounds are standard normal; everything else is uniform over the space.
    """
    if isinstance(space, spaces.Dict):
        named = {key: drawer(part) for key, part in space.spaces.items()}
        return lambda random, n: {key: draw(random, n) for key, draw in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [drawer(part) for part in space.spaces]
        return lambda random, n: tuple([draw(random, n) for draw in parts])
    if isinstance(space, spaces.Box):
        real = np.issubdtype(space.dtype, np.floating)
        return floats(space) if real else integers(space, *common_bounds(space))
    if isinstance(space, spaces.Discrete):
        return lambda random, n: codes(random, space.n, (n,))
    if isinstance(space, spaces.MultiDiscrete):
        count = cardinality(space) or space.nvec
        return lambda random, n: codes(random, count, (n, *space.nvec.shape))
    assert isinstance(space, spaces.MultiBinary)
    return integers(space, 0, 1)


def floats(space: spaces.Box) -> ValueDraw:
    """Return the draw for floats: normal without bounds, else uniform between them."""
    # NumPy draws float32 or float64; float16 is rounded from float32.
    kind: Any = np.float64 if space.dtype == np.float64 else np.float32
    low, high = kind(space.low.flat[0]), kind(space.high.flat[0])

    def normal(random: np.random.Generator, n: int) -> Array:
        drawn = random.standard_normal((n, *space.shape), kind)
        return drawn.astype(space.dtype, copy=False)

    def uniform(random: np.random.Generator, n: int) -> Array:
        share = random.random((n, *space.shape), kind)
        # A weighted mean of the bounds: high - low could overflow.
        drawn = low * (1 - share) + high * share
        return np.clip(drawn, low, high, out=drawn).astype(space.dtype, copy=False)

    return uniform if np.isfinite(low) else normal


def codes(random: np.random.Generator, count: Any, shape: tuple[int, ...]) -> Array:
    """Draw uniform int64 codes from 0 to `count` - 1."""
    # Twice as fast as Generator.integers for some hundred values; with 53 bits the bias is tiny.
    return (random.random(shape) * count).astype(np.int64)


def integers(space: spaces.Box | spaces.MultiBinary, low: int, high: int) -> ValueDraw:
    """Return the draw for integers from `low` to `high`, both included, in the space's dtype."""
    shape, dtype = space.shape, space.dtype
    return lambda random, n: random.integers(low, high, (n, *shape), dtype, endpoint=True)


def common_bounds(space: spaces.Box) -> tuple[Any, Any]:
    """Return the bounds of a Box whose entries all have the same ones."""
    return space.low.flat[0].item(), space.high.flat[0].item()


def cardinality(space: spaces.MultiDiscrete) -> int | None:
    """Return the number of codes per entry; None if entries differ."""
    counts = space.nvec.flatten()
    return int(counts[0]) if (counts == counts[0]).all() else None


def take_rows(tree: Any, rows: Any) -> Any:
    """Return rows of every array [P, ...] of a tree: [B, ...] for rows [B], [...] for an int."""
    if isinstance(tree, dict):
        return {key: take_rows(part, rows) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([take_rows(part, rows) for part in tree])
    return tree.take(rows, 0)
