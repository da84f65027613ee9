"""Tasks that need memory: CartPole without its velocities, and Recall, to name the cue shown at
the start."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.engines.single import SingleLane
from rookery.envs.options import is_whole
from rookery.envs.spaces import Array
from rookery.errors import require

SEEN = [0, 2]
"""Indices of cart position and pole angle in CartPole's observation."""


def masked(space: Any) -> spaces.Box:
    """Return CartPole's observation space reduced to position and angle."""
    return spaces.Box(space.low[SEEN], space.high[SEEN], dtype=np.float32)


class MaskedCartPole(CartPoleEnv):
    """CartPole-v1 that observes position and angle only."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_space = masked(self.observation_space)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs[SEEN], info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[SEEN], *rest


class MaskedCartPoleVector(CartPoleVectorEnv):
    """Vectorized MaskedCartPole."""

    def __init__(self, num_envs: int = 1, **kwargs: Any):
        super().__init__(num_envs=num_envs, **kwargs)
        self.single_observation_space = masked(self.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs[:, SEEN], info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[:, SEEN], *rest


class RecallVector(VectorEnv[Any, Any, Any]):
    """Episodes of a cue, `delay` blanks, then a query, at which the action must name the cue.

    Observations are float32 [B, cues + 1]: the cue one-hot at the first step, all zeros at the
    blanks, and the last entry 1 at the query. The action at the query pays 1 if it equals the
    cue, else 0, and ends the episode; other actions do nothing. The observation at the query is
    the same whatever the cue was, so a policy without memory draws its answer independently of
    a cue that is uniform over `cues` values, and scores 1 / cues in expectation.

    `reset(options={"cue": [B]})` chooses the first cues.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        cues: int = 4,
        delay: int = 8,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ):
        require(is_whole(cues, 2), f"env.kwargs: cues must be a whole number >= 2, got {cues!r}")
        require(is_whole(delay, 0), f"env.kwargs: delay must be a whole number >= 0, got {delay!r}")
        self.single_observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.num_envs, self.cues, self.delay, self.render_mode = num_envs, cues, delay, render_mode
        self.max_episode_steps = max_episode_steps or delay + 3
        self.single_action_space = spaces.Discrete(cues)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._cue = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._resetting = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        drawn = self.np_random.integers(self.cues, size=self.num_envs)
        self._cue = np.full(self.num_envs, (options or {}).get("cue", drawn), np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._resetting = np.zeros(self.num_envs, bool)
        return self._observations(), {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), f"{actions!r} is not in {self.action_space}"
        resetting = self._resetting
        queried = (self._step == self.delay + 1) & ~resetting
        reward = (queried & (actions == self._cue)).astype(np.float64)
        self._step = np.where(resetting, 0, self._step + 1)
        self._cue[resetting] = self.np_random.integers(self.cues, size=np.count_nonzero(resetting))
        truncated = self._step >= self.max_episode_steps
        self._resetting = queried | truncated
        return self._observations(), reward, queried, truncated, {}

    def _observations(self) -> Array:
        obs = np.zeros((self.num_envs, self.cues + 1), np.float32)
        first = np.flatnonzero(self._step == 0)
        obs[first, self._cue[first]] = 1
        obs[:, self.cues] = self._step == self.delay + 1
        return obs


class Recall(SingleLane):
    """A single Recall."""

    def __init__(self, cues: int = 4, delay: int = 8, render_mode: str | None = None):
        super().__init__(RecallVector(1, cues, delay, render_mode=render_mode))
