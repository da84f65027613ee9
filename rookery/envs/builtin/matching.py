"""A task for any spaces: the observation hides which action pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.envs.builtin.draws import cardinality, ends
from rookery.envs.builtin.draws import codes as draw_codes
from rookery.envs.spaces import Path, at, leaves
from rookery.envs.wrappers.moments import Array
from rookery.errors import require

Hide = Callable[[Array, Array, np.random.Generator], None]
"""Writes codes [n] into a part [n, ...] of observations."""

SEVERAL = 64
"""Most answers where an action has several parts, unless one part alone has more."""
LEVELS = 16
"""Answers where actions are floats."""
FINEST = 1024
"""Most answers that one number can tell."""
RANGE = (-2.0, 2.0)
"""What stands for the bounds of an observed float that has none."""


class Match:
    """Which of `count` answers is right is a code, drawn evenly; `table[code]` is the action.

    `path` leads to the part of the observation that tells the code:

    - A set of codes (a MultiDiscrete with the same range for all entries): one entry, at a place
      drawn anew each time, holds the code. The others hold values >= count.
    - A Discrete, or a MultiDiscrete of differing ranges: it, or its entry of widest range, holds
      the code.
    - With none of these, a float Box, else a Box of whole numbers, else a MultiBinary: everywhere
      on index 0 of its last axis stands the code as one of `count` even steps from the lower to
      the upper bound (-2 to 2 without bounds).

    Of several such parts it is the first that can tell all answers, else the first of those that
    can tell the most: then `count` is smaller, and fewer actions are ever right.
    """

    def __init__(self, obs: Space[Any], act: Space[Any]):
        wanted = answers_wanted(act)
        able = [(path, leaf) for path, leaf in leaves(obs) if capacity(leaf) >= 2]
        require(able, "env.kwargs: task needs a part of obs with at least two values")
        best = min(rank(leaf) for _, leaf in able)
        able = [(path, leaf) for path, leaf in able if rank(leaf) == best]
        self.path: Path
        self.path, carrier = max(able, key=lambda part: min(capacity(part[1]), wanted))
        self.count = min(capacity(carrier), wanted)
        self.table = answer_table(act, self.count)
        self._hide = hider(carrier, self.count)
        self._half = half_width(act) if isinstance(act, spaces.Box) else None

    def hide(self, obs: Any, random: np.random.Generator, n: int) -> Array:
        """Write answers into `n` observations; their codes [n]."""
        codes = draw_codes(random, self.count, (n,))
        self._hide(at(obs, self.path), codes, random)
        return codes

    def pay(self, actions: Array, codes: Array) -> Array:
        """What actions [n, ...] get: the share of their parts that is right, [n] in 0..1.

        A float counts as 1 less its distance from the answer, in halves of its bounds' width.
        """
        right = self.table[codes]
        if self._half is None:
            score = (actions == right).astype(np.float64)
        else:
            away = np.abs(actions.astype(np.float64) - right) / self._half
            score = np.maximum(1 - away, 0)
        return score if score.ndim == 1 else score.reshape(len(codes), -1).mean(1)


def rank(leaf: Space[Any]) -> int:
    """Which kinds of parts hide the answer before others do."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return 0
    if isinstance(leaf, spaces.Box):
        return 1 if np.issubdtype(leaf.dtype, np.floating) else 2
    return 3


def capacity(leaf: Space[Any]) -> int:
    """How many answers a part of the observation can tell apart."""
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        alone = leaf.nvec.size == 1 or cardinality(leaf) is None
        # In a set one value at least is left for the entries that say nothing.
        return int(leaf.nvec.max()) - (0 if alone else 1)
    if isinstance(leaf, spaces.Box):
        low, high = ends(leaf)
        real = np.issubdtype(leaf.dtype, np.floating)
        return FINEST if real else min(high - low + 1, FINEST)
    return 2


def hider(leaf: Space[Any], count: int) -> Hide:
    """What writes codes below `count` into a part of the observation."""
    if isinstance(leaf, spaces.Discrete):
        return hide_in_entry(0)
    if isinstance(leaf, spaces.MultiDiscrete):
        same = cardinality(leaf)
        if same is None or leaf.nvec.size == 1:
            return hide_in_entry(int(leaf.nvec.argmax()))
        return hide_in_set(count, same)
    low, high = ends(leaf) if isinstance(leaf, spaces.Box) else (0, 1)
    if not math.isfinite(low):
        low, high = RANGE
    steps = [evenly(low, high, code, count - 1) for code in range(count)]
    return hide_in_column(np.array(steps, leaf.dtype))


def hide_in_entry(entry: int) -> Hide:
    def hide(part: Array, codes: Array, random: np.random.Generator) -> None:
        part.reshape(len(part), -1)[:, entry] = codes

    return hide


def hide_in_set(count: int, values: int) -> Hide:
    def hide(part: Array, codes: Array, random: np.random.Generator) -> None:
        flat = part.reshape(len(part), -1)
        flat[:] = count + draw_codes(random, values - count, flat.shape)
        place = draw_codes(random, flat.shape[1], (len(flat),))
        flat[np.arange(len(flat)), place] = codes

    return hide


def hide_in_column(steps: Array) -> Hide:
    def hide(part: Array, codes: Array, random: np.random.Generator) -> None:
        part[..., 0] = steps[codes].reshape(-1, *[1] * (part.ndim - 2))

    return hide


def evenly(low: Any, high: Any, step: int, steps: int) -> Any:
    """The number at `step` of `steps` from `low` to `high`; whole between whole ones."""
    if isinstance(low, int):
        return low + (high - low) * step // max(steps, 1)
    share = step / max(steps, 1)
    return low * (1 - share) + high * share


def answers_wanted(act: Space[Any]) -> int:
    """How many different answers an action space is given."""
    if isinstance(act, spaces.Box):
        return LEVELS
    parts = parts_of(act)
    return min(math.prod(parts), max(SEVERAL, *parts)) if len(parts) > 1 else parts[0]


def parts_of(act: Space[Any]) -> list[int]:
    """The number of choices of each part of an action that is not made of floats."""
    if isinstance(act, spaces.Discrete):
        return [int(act.n)]
    if isinstance(act, spaces.MultiDiscrete):
        return [int(n) for n in act.nvec.flatten()]
    return [2] * math.prod(act.shape or ())


def answer_table(act: Space[Any], count: int) -> Array:
    """The right action of each code, [count, ...]: the same in every process.

    The parts of an action run through their choices in the order of the codes, as evenly as can
    be, every second one backwards; floats through the middles of `count` stretches of their
    bounds. So an answer changes little from one code to the next, and one number can tell it.
    """
    size = math.prod(act.shape or ())
    order = np.arange(count)
    orders = np.stack([order[::-1] if part % 2 else order for part in range(size)], 1)
    if isinstance(act, spaces.Box):
        low, high = action_bounds(act)
        share = (orders + 0.5) / count
        table: Array = low.flatten() * (1 - share) + high.flatten() * share
    else:
        table = orders * parts_of(act) // count
    return table.reshape(count, *(act.shape or ())).astype(act.dtype)


def action_bounds(act: spaces.Box) -> Sequence[Array]:
    """The bounds of actions, -1 and 1 where there are none, in float64."""
    low, high = act.low.astype(np.float64), act.high.astype(np.float64)
    return np.where(np.isfinite(low), low, -1), np.where(np.isfinite(high), high, 1)


def half_width(act: spaces.Box) -> Array:
    low, high = action_bounds(act)
    return high / 2 - low / 2
