"""Vector wrappers for episodes: their scores, lost lives, and clipped rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]


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


class EpisodeStatistics(BaseWrapper):
    """Raw return and length of whole episodes, in `info["episode"]` of the step that ends them.

    It holds "return" (float64 [B]), "length" in agent steps without reset rows (int64 [B]) and
    "done" (bool [B]): the lanes for which the other two are final. An episode that was cut because
    its server is unreachable does not count, nor does one that ends on a reset row.
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
            info = {**info, "episode": self._finished(done & ~cut)}
        elif "episode" in info:
            info = {key: value for key, value in info.items() if key != "episode"}
        self.resetting = done
        return obs, reward, terminated, truncated, info

    def _finished(self, done: Array) -> dict[str, Array]:
        return {
            "return": self._returns.copy(),
            "length": self._lengths.copy(),
            "done": done.copy(),
        }


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
