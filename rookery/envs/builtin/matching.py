"""Random observations of any space, and a task: they contain a code for the rewarded action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.envs.spaces import Array, Path, part_at, space_leaves
from rookery.errors import require

ValueDraw = Callable[[np.random.Generator, int], Any]
"""Function from a generator and a count n to a tree of new arrays [n, ...]."""
Hide = Callable[[Array, Array, np.random.Generator], None]
"""Function that writes codes [n] into a part [n, ...] of observations."""

SEVERAL = 64
"""Most codes where an action has several parts, unless one part alone has more choices."""
LEVELS = 16
"""Number of codes where actions are floats."""
FINEST = 1024
"""Most codes that one number can distinguish."""
RANGE = (-2.0, 2.0)
"""Bounds used for an observed float that has none."""


class Match:
    """Draws one of `count` codes per observation; the right action is `table[code]`.

    `path` leads to the part of the observation that contains the code; docs/synthetic.md says which
    part that is, and how the code is written. If no part can represent all codes, `count` is
    smaller, and some actions are never right.
    """

    def __init__(self, obs: Space[Any], act: Space[Any]):
        wanted = codes_wanted(act)
        parts = [(path, leaf) for path, leaf in space_leaves(obs) if capacity(leaf) >= 2]
        require(parts, "env.kwargs: task needs a part of obs with at least two values")
        best = min(rank(leaf) for _, leaf in parts)
        parts = [(path, leaf) for path, leaf in parts if rank(leaf) == best]
        self.path: Path
        self.path, carrier = max(parts, key=lambda part: min(capacity(part[1]), wanted))
        self.count = min(capacity(carrier), wanted)
        self.table = answer_table(act, self.count)
        self._hide = hider(carrier, self.count)
        self._half_width: Array | None = None
        if isinstance(act, spaces.Box):
            low, high = action_bounds(act)
            self._half_width = high / 2 - low / 2

    def hide(self, obs: Any, random: np.random.Generator, n: int) -> Array:
        """Write random codes into `n` observations; return the codes [n]."""
        codes = draw_codes(random, self.count, (n,))
        self._hide(part_at(obs, self.path), codes, random)
        return codes

    def reward(self, actions: Array, codes: Array) -> Array:
        """Return the rewards [n] of actions [n, ...]: the share of their parts that is right.

        A float counts max(0, 1 - |action - right| / half the width of its bounds).
        """
        right = self.table[codes]
        if self._half_width is None:
            score = (actions == right).astype(np.float64)
        else:
            away = np.abs(actions.astype(np.float64) - right) / self._half_width
            score = np.maximum(1 - away, 0)
        return score if score.ndim == 1 else score.reshape(len(codes), -1).mean(1)


def rank(leaf: Space[Any]) -> int:
    """Return the preference of a part as carrier of the code; lower is preferred."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return 0
    if isinstance(leaf, spaces.Box):
        return 1 if np.issubdtype(leaf.dtype, np.floating) else 2
    return 3


def capacity(leaf: Space[Any]) -> int:
    """Return how many codes a part of the observation can represent."""
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        # In a set at least one value is left for the entries without the code.
        return int(leaf.nvec.max()) - (0 if cardinality(leaf) is None else 1)
    if isinstance(leaf, spaces.Box):
        low, high = common_bounds(leaf)
        real = np.issubdtype(leaf.dtype, np.floating)
        return FINEST if real else min(high - low + 1, FINEST)
    return 2


def hider(leaf: Space[Any], count: int) -> Hide:
    """Return the function that writes codes below `count` into a part of the observation."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        values = cardinality(leaf) if isinstance(leaf, spaces.MultiDiscrete) else None
        entry = int(np.argmax(getattr(leaf, "nvec", 0)))

        def hide(part: Array, codes: Array, random: np.random.Generator) -> None:
            flat = part.reshape(len(part), -1)
            if values is None:
                flat[:, entry] = codes
                return
            flat[:] = count + draw_codes(random, values - count, flat.shape)
            place = draw_codes(random, flat.shape[1], (len(flat),))
            flat[np.arange(len(flat)), place] = codes

        return hide
    low, high = common_bounds(leaf) if isinstance(leaf, spaces.Box) else (0, 1)
    if not math.isfinite(low):
        low, high = RANGE
    steps = np.array([even_step(low, high, code, count - 1) for code in range(count)], leaf.dtype)

    def hide_step(part: Array, codes: Array, random: np.random.Generator) -> None:
        part[..., 0] = steps[codes].reshape(-1, *[1] * (part.ndim - 2))

    return hide_step


def even_step(low: Any, high: Any, step: int, steps: int) -> Any:
    """Return the number at `step` of `steps` from `low` to `high`; an int between ints."""
    if isinstance(low, int):
        return low + (high - low) * step // max(steps, 1)
    share = step / max(steps, 1)
    return low * (1 - share) + high * share


def codes_wanted(act: Space[Any]) -> int:
    """Return the number of codes for an action space."""
    if isinstance(act, spaces.Box):
        return LEVELS
    parts = choice_counts(act)
    return min(math.prod(parts), max(SEVERAL, *parts)) if len(parts) > 1 else parts[0]


def choice_counts(act: Space[Any]) -> list[int]:
    """Return the number of choices of each part of a discrete action."""
    if isinstance(act, spaces.Discrete):
        return [int(act.n)]
    if isinstance(act, spaces.MultiDiscrete):
        return [int(n) for n in act.nvec.flatten()]
    return [2] * math.prod(act.shape or ())


def answer_table(act: Space[Any], count: int) -> Array:
    """Return the right action of each code, [count, ...]: the same in every process.

    Each part of an action runs evenly through its choices in the order of the codes, every second
    part backwards; floats run through the middles of `count` intervals between their bounds. So
    the action changes little from one code to the next, and a network can learn it from one number.
    """
    size = math.prod(act.shape or ())
    order = np.arange(count)
    orders = np.stack([order[::-1] if part % 2 else order for part in range(size)], 1)
    if isinstance(act, spaces.Box):
        low, high = action_bounds(act)
        share = (orders + 0.5) / count
        table: Array = low.flatten() * (1 - share) + high.flatten() * share
    else:
        table = orders * choice_counts(act) // count
    return table.reshape(count, *(act.shape or ())).astype(act.dtype)


def action_bounds(act: spaces.Box) -> Sequence[Array]:
    """Return the bounds of actions in float64, -1 and 1 where there are none."""
    low, high = act.low.astype(np.float64), act.high.astype(np.float64)
    return np.where(np.isfinite(low), low, -1), np.where(np.isfinite(high), high, 1)


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
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return floats(space)
    if isinstance(space, spaces.Discrete):
        return lambda random, n: draw_codes(random, space.n, (n,))
    if isinstance(space, spaces.MultiDiscrete):
        count = cardinality(space) or space.nvec
        return lambda random, n: draw_codes(random, count, (n, *space.nvec.shape))
    low, high = common_bounds(space) if isinstance(space, spaces.Box) else (0, 1)
    shape, dtype = space.shape or (), space.dtype
    return lambda random, n: random.integers(low, high, (n, *shape), dtype, endpoint=True)


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


def draw_codes(random: np.random.Generator, count: Any, shape: tuple[int, ...]) -> Array:
    """Draw uniform int64 codes from 0 to `count` - 1."""
    # Twice as fast as Generator.integers for some hundred values; with 53 bits the bias is tiny.
    return (random.random(shape) * count).astype(np.int64)


def common_bounds(space: spaces.Box) -> tuple[Any, Any]:
    """Return the bounds of a Box whose entries all have the same ones."""
    return space.low.flat[0].item(), space.high.flat[0].item()


def cardinality(space: spaces.MultiDiscrete) -> int | None:
    """Return the number of codes per entry; None if entries differ, or if there is only one."""
    counts = space.nvec.flatten()
    return int(counts[0]) if len(counts) > 1 and (counts == counts[0]).all() else None


def take_rows(tree: Any, rows: Any) -> Any:
    """Return rows of every array [P, ...] of a tree: [B, ...] for rows [B], [...] for an int."""
    if isinstance(tree, dict):
        return {key: take_rows(part, rows) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([take_rows(part, rows) for part in tree])
    return tree.take(rows, 0)
