"""Vector wrappers about episodes: what they scored, what ends them, what they pay."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]


class Layer(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector wrapper that knows which lanes are about to be reset.

    `resetting` [B] holds between steps: True where the last step ended an episode, so that the
    next row is a reset row.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.resetting = np.zeros(env.num_envs, bool)

    @property
    def engine(self) -> str:
        """What runs the environments: "ale", "envpool", "gymnasium-native" or "for-loop"."""
        return str(getattr(self.env, "engine", "custom"))

    @property
    def frame_stack(self) -> int:
        """Frames in one observation."""
        return self.env.frame_stack if isinstance(self.env, Layer) else 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.resetting = np.zeros(self.num_envs, bool)
        return self.env.reset(seed=seed, options=options)


class EpisodeStatistics(Layer):
    """Raw return and length of whole episodes, told at the step where they end.

    Then `info["episode"]` holds "return" (float64 [B]), "length" in agent steps without reset
    rows (int64 [B]) and "done" (bool [B]): the lanes for which the other two are final. An
    episode that was cut because its server is away is none, nor is one that ends on a reset row.
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


class OneLife(Layer):
    """Losing a life ends learning's episode while the game goes on.

    The step that loses a life reports `terminated`. The next row stands for a reset row: the
    lane's action is ignored, a no-op is played, the reward is 0. If that no-op ends the game, the
    row says so and the row after it is the environment's own reset row; if it loses another
    life, play just goes on. A count that falls to 0 ends nothing: some games (Qbert) show 0 for
    some frames before they end, and others run on.
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
                "env.one_life needs an environment that reports its lives in info, "
                'and this one does not: set env.one_life=false or add info["lives"]'
            )
        return np.array(info["lives"], np.int64)


def no_op(space: Any) -> Any:
    """The action taken to be 'do nothing': Atari's 0, or no force at all."""
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.MultiDiscrete):
        return space.start
    return np.zeros(space.shape, space.dtype)


class ClipReward(Layer):
    """The learner gets the sign of the reward."""

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return obs, np.sign(reward), terminated, truncated, info
