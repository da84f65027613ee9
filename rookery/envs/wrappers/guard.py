"""The innermost wrapper: checks observations and rewards, and reports failures in one line."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

from rookery.envs.spaces import Path, dotted, part_at, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import RunFailed

SLACK = 0.01
"""Share of a Box's width by which an observation may leave it: rounding, one integrator step."""

ESTIMATED_BOUNDS = ("gymnasium.envs.box2d.",)
"""Modules whose Boxes are only estimates: LunarLander's speed and angle may leave theirs."""
ESTIMATED_NAMES = ("LunarLander", "BipedalWalker")

Check = Callable[[Array], str | None]
"""Function that describes what is wrong with a batch of values; None: nothing."""


class Guard(BaseWrapper):
    """Raises RunFailed if the environment raises or returns invalid values.

    Rewards and observations must be finite, discrete observations in range, Box observations
    within their finite bounds with a tolerance of 1 % of the width. For environments whose bounds
    are estimates (Box2D), and with `env.check_bounds=false`, values must only be finite.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], name: str, *, check_bounds: bool = True):
        super().__init__(env)
        self.name = name
        check_bounds = check_bounds and not estimated_bounds(env, name)
        checks = [
            (path, leaf_check(leaf, check_bounds))
            for path, leaf in space_leaves(env.single_observation_space)
        ]
        self._checks: list[tuple[Path, Check]] = [(p, c) for p, c in checks if c is not None]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        try:
            obs, info = super().reset(seed=seed, options=options)
        except Exception as error:
            raise self._failure(error) from error
        self._check_obs(obs)
        return obs, info

    def step(self, actions: Any) -> Step:
        try:
            obs, reward, terminated, truncated, info = self.env.step(actions)
        except Exception as error:
            raise self._failure(error) from error
        if not math.isfinite(np.add.reduce(reward)) and not np.isfinite(reward).all():
            lane = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise RunFailed(
                f'envs: "{self.name}" returned the reward {reward[lane]} (environment {lane})'
            )
        self._check_obs(obs)
        return obs, reward, terminated, truncated, info

    def _check_obs(self, obs: Any) -> None:
        for path, check in self._checks:
            wrong = check(part_at(obs, path))
            if wrong:
                where = f' at "{dotted(path)}"' if path else ""
                raise RunFailed(f'envs: "{self.name}" returned {wrong}{where}')

    def _failure(self, error: Exception) -> RunFailed:
        details = "".join(traceback.format_exception(error))
        if isinstance(error, RunFailed):
            return RunFailed(f'envs: "{self.name}" {error}', details)
        text = " ".join(str(error).split())
        return RunFailed(f'envs: "{self.name}" raised {type(error).__name__}: {text}', details)


def estimated_bounds(env: VectorEnv[Any, Any, Any], name: str) -> bool:
    """True if the environment is known to leave the bounds of its observation space."""
    name = getattr(env, "served", name)
    if name.removeprefix("envpool:").startswith(ESTIMATED_NAMES):
        return True
    singles = getattr(env, "envs", None) or [env]
    return any(
        kind.__module__.startswith(ESTIMATED_BOUNDS) for kind in type(singles[0].unwrapped).__mro__
    )


def leaf_check(leaf: Space[Any], check_bounds: bool) -> Check | None:
    """Return the check for a batch of a leaf's values; None if every value is valid."""
    if isinstance(leaf, spaces.Discrete):
        return range_check(leaf, leaf.start, leaf.start + leaf.n - 1)
    if isinstance(leaf, spaces.MultiDiscrete):
        return range_check(leaf, leaf.start, leaf.start + leaf.nvec - 1)
    if isinstance(leaf, spaces.MultiBinary):
        return range_check(leaf, 0, 1)
    if not isinstance(leaf, spaces.Box):
        return None
    if np.issubdtype(leaf.dtype, np.floating):
        return float_check(leaf, check_bounds)
    info = np.iinfo(leaf.dtype) if np.issubdtype(leaf.dtype, np.integer) else None
    full = info is None or (np.all(leaf.low == info.min) and np.all(leaf.high == info.max))
    return None if full or not check_bounds else range_check(leaf, leaf.low, leaf.high)


def range_check(leaf: Space[Any], low: Any, high: Any) -> Check:
    """Return the check for integers from `low` to `high`, both included."""

    def check(value: Array) -> str | None:
        if not np.count_nonzero((value < low) | (value > high)):
            return None
        return outside(leaf, value, low, high)

    return check


def float_check(leaf: spaces.Box, check_bounds: bool) -> Check:
    """Return the check for finite numbers within the bounds, with `SLACK`."""
    if not check_bounds or not (np.isfinite(leaf.low).any() or np.isfinite(leaf.high).any()):
        return finite_check
    low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
    both = np.isfinite(low) & np.isfinite(high)
    # A one-sided bound has no width; its absolute value is used instead.
    size = np.fmax(
        np.where(np.isfinite(low), abs(low), 0), np.where(np.isfinite(high), abs(high), 0)
    )
    width = np.where(both, np.where(both, high, 0) - np.where(both, low, 0), np.fmax(size, 1))
    most = float(np.finfo(str(leaf.dtype)).max)
    # With finite limits one comparison suffices: infinity exceeds them, NaN fails all comparisons.
    low = np.maximum(low - SLACK * width, -most).astype(leaf.dtype)
    high = np.minimum(high + SLACK * width, most).astype(leaf.dtype)

    def check(value: Array) -> str | None:
        if np.count_nonzero((value >= low) & (value <= high)) == value.size:
            return None
        return finite_check(value) or outside(leaf, value, low, high)

    return check


def finite_check(value: Array) -> str | None:
    """Describe the first NaN or infinity; None if all values are finite."""
    # A finite sum means finite values; an overflowing one needs a closer look.
    if math.isfinite(np.add.reduce(value, axis=None)):
        return None
    wrong = ~np.isfinite(value)
    return f"an observation with {value[wrong][0]} in it" if wrong.any() else None


def outside(leaf: Space[Any], value: Array, low: Any, high: Any) -> str | None:
    """Describe the first number outside the space and the remedy; None if there is none."""
    wrong = (value < low) | (value > high)
    if not wrong.any():
        return None
    remedy = ""
    if isinstance(leaf, spaces.Box):
        remedy = " (correct the space, or set env.check_bounds=false)"
    return f"an observation of {value[wrong][0]}, outside its space {leaf}{remedy}".replace(
        "\n", " "
    )
