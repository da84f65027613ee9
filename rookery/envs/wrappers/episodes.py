"""Vector wrappers: checks and scores, which every environment has, lost lives, clipped rewards."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.spaces import Array, Path, located, part_at, space_leaves, value_range
from rookery.errors import BadInput, RunFailed

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]
SLACK = 0.01
"""Share of a Box's width by which an observation may leave it: rounding, one integrator step."""
ESTIMATED_BOUNDS = ("gymnasium.envs.box2d.",)
"""Modules whose Boxes are only estimates: LunarLander's speed and angle may leave theirs."""
ESTIMATED_NAMES = ("LunarLander", "BipedalWalker")
Check = Callable[[Array], str | None]
"""Function that describes what is wrong with a batch of values; None: nothing."""


class BaseWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector wrapper with `resetting` [B]: True where the last step ended an episode, so that
    the next row is a reset row."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.resetting = np.zeros(env.num_envs, bool)

    @property
    def engine(self) -> str:
        """Name of the engine: "ale", "envpool", "gymnasium-native" or "for-loop"."""
        return str(getattr(self.env, "engine", "custom"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.resetting = np.zeros(self.num_envs, bool)
        return self.env.reset(seed=seed, options=options)


def wrapper_chain(env: Any) -> Iterator[Any]:
    """Yield an environment and what it wraps, outermost first."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


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
                raise RunFailed(f'envs: "{self.name}" returned {wrong}{located(path)}')

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
    low, high = value_range(leaf)
    if np.issubdtype(leaf.dtype, np.floating):
        bounded = np.isfinite(low).any() or np.isfinite(high).any()
        return range_check(leaf, *with_slack(leaf)) if check_bounds and bounded else finite_check
    if isinstance(leaf, spaces.Box):
        info = np.iinfo(leaf.dtype) if np.issubdtype(leaf.dtype, np.integer) else None
        full = info is None or (np.all(low == info.min) and np.all(high == info.max))
        if full or not check_bounds:
            return None
    return range_check(leaf, low, high)


def range_check(leaf: Space[Any], low: Any, high: Any) -> Check:
    """Return the check for values from `low` to `high`, both included."""
    remedy = ""
    if isinstance(leaf, spaces.Box):
        remedy = " (correct the space, or set env.check_bounds=false)"

    def check(value: Array) -> str | None:
        # With finite limits one comparison suffices: infinity exceeds them, NaN fails all.
        inside = (value >= low) & (value <= high)
        if np.count_nonzero(inside) == value.size:
            return None
        outside = f"an observation of {value[~inside][0]}, outside its space {leaf}{remedy}"
        return finite_check(value) or outside.replace("\n", " ")

    return check


def with_slack(leaf: Any) -> tuple[Array, Array]:
    """Return the bounds of a Box of floats, wider by `SLACK`; all are finite."""
    low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
    both = np.isfinite(low) & np.isfinite(high)
    # A one-sided bound has no width; its absolute value is used instead.
    size = np.fmax(
        np.where(np.isfinite(low), abs(low), 0), np.where(np.isfinite(high), abs(high), 0)
    )
    width = np.where(both, np.where(both, high, 0) - np.where(both, low, 0), np.fmax(size, 1))
    most = float(np.finfo(leaf.dtype).max)
    low = np.maximum(low - SLACK * width, -most).astype(leaf.dtype)
    return low, np.minimum(high + SLACK * width, most).astype(leaf.dtype)


def finite_check(value: Array) -> str | None:
    """Describe the first NaN or infinity; None if all values are finite."""
    # A finite sum means finite values; an overflowing one needs a closer look.
    if math.isfinite(np.add.reduce(value, axis=None)):
        return None
    wrong = ~np.isfinite(value)
    return f"an observation with {value[wrong][0]} in it" if wrong.any() else None


class EpisodeStatistics(BaseWrapper):
    """Raw return and length of whole episodes, in `info["episode"]` of the step that ends them.

    It holds "return" (float64 [B]), "length" in agent steps without reset rows (int64 [B]),
    "truncated" (bool [B]; False where the episode terminated on that step too) and "done" (bool
    [B]): the lanes for which the others are final. An episode that was cut because its server is
    unreachable does not count, nor does one that ends on a reset row.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._returns[:] = 0
        self._lengths[:] = 0
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        reward = reward.astype(np.float64)
        self._returns += reward
        self._lengths += 1
        if np.count_nonzero(self.resetting):
            self._returns[self.resetting] = 0
            self._lengths[self.resetting] = 0
        done = terminated | truncated
        if np.count_nonzero(done):
            cut = info.get("lost", False) | self.resetting
            episode = {
                "return": self._returns.copy(),
                "length": self._lengths.copy(),
                "truncated": truncated & ~terminated,
                "done": done & ~cut,
            }
            info = {**info, "episode": episode}
        elif "episode" in info:
            info = {key: value for key, value in info.items() if key != "episode"}
        self.resetting = done
        return obs, reward, terminated, truncated, info


class OneLife(BaseWrapper):
    """A lost life ends the learner's episode while the game goes on.

    The step that loses a life reports `terminated`. The next row serves as its reset row: the
    lane's action is ignored, a no-op is played, the reward is 0. If that no-op ends the game, the
    row reports it and the row after it is the environment's own reset row; if it loses another
    life, play continues. A count that falls to 0 ends no episode: some games (Qbert) show 0 for
    some frames before they end, and others continue.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self._noop = no_op(env.single_action_space)
        self._lives = np.zeros(env.num_envs, np.int64)
        self._paused = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self._lives = self._count(info)
        self._paused = np.zeros(self.num_envs, bool)
        return obs, info

    def step(self, actions: Any) -> Step:
        paused = self._paused
        if np.count_nonzero(paused):
            actions = np.array(actions)
            actions[paused] = self._noop
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if np.count_nonzero(paused):
            reward = np.where(paused, 0.0, reward)
        lives = self._count(info)
        done = terminated | truncated
        fewer = (lives < self._lives) & (lives > 0)
        self._paused = fewer & ~(done | self.resetting | paused)
        self._lives = lives
        self.resetting = done
        return obs, reward, terminated | self._paused, truncated, info

    def _count(self, info: dict[str, Any]) -> Array:
        if "lives" not in info:
            raise BadInput(
                'env.one_life needs info["lives"], which this environment does not report: '
                "set env.one_life=false or add it"
            )
        return np.array(info["lives"], np.int64)


def no_op(space: Any) -> Any:
    """Return the action that is assumed to do nothing: the first code, or zeros."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.start
    return np.zeros(space.shape, space.dtype)


class ClipReward(BaseWrapper):
    """Rewards replaced by their sign."""

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return obs, np.sign(reward), terminated, truncated, info
