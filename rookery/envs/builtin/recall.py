"""A task that only a policy with memory solves: name the cue shown at the start."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.options import is_whole
from rookery.envs.wrappers.moments import Array
from rookery.errors import require


def observation_space(cues: int, delay: int) -> spaces.Box:
    """Return the space [cues + 1]: one entry a cue, and the query's flag; check the settings."""
    require(is_whole(cues, 2), f"env.kwargs: cues must be a whole number >= 2, got {cues!r}")
    require(is_whole(delay, 0), f"env.kwargs: delay must be a whole number >= 0, got {delay!r}")
    return spaces.Box(0.0, 1.0, (cues + 1,), np.float32)


def observations(cue: Array, step: Array, cues: int, delay: int) -> Array:
    """Return the observations [B, cues + 1] of lanes with cues [B] at steps [B] of an episode."""
    obs = np.zeros((len(cue), cues + 1), np.float32)
    first = np.flatnonzero(step == 0)
    obs[first, cue[first]] = 1
    obs[:, cues] = step == delay + 1
    return obs


class Recall(gymnasium.Env[Any, Any]):
    """Episodes of a cue, `delay` blanks, then a query, at which the action must name the cue.

    Observations are float32 [cues + 1]: the cue one-hot at the first step, all zeros at the
    blanks, and the last entry 1 at the query. The action at the query pays 1 if it equals the
    cue, else 0, and ends the episode; other actions do nothing. The observation at the query is
    the same whatever the cue was, so a policy without memory draws its answer independently of
    a cue that is uniform over `cues` values, and scores 1 / cues in expectation.

    `reset(options={"cue": k})` chooses the cue.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, cues: int = 4, delay: int = 8, render_mode: str | None = None):
        self.cues, self.delay, self.render_mode = cues, delay, render_mode
        self.observation_space = observation_space(cues, delay)
        self.action_space = spaces.Discrete(cues)
        self._cue = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.cues))
        self._cue, self._step = (options or {}).get("cue", drawn), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        queried = self._step == self.delay + 1
        self._step += 1
        return self._observation(), float(queried and action == self._cue), queried, False, {}

    def _observation(self) -> Array:
        cue, step = np.array([self._cue]), np.array([self._step])
        return observations(cue, step, self.cues, self.delay)[0]


class RecallVector(VectorEnv[Any, Any, Any]):
    """Vectorized Recall; `reset(options={"cue": [B]})` chooses the first cues."""

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
        self.single_observation_space = observation_space(cues, delay)
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
        self._cue = np.array((options or {}).get("cue", drawn), np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._resetting = np.zeros(self.num_envs, bool)
        return observations(self._cue, self._step, self.cues, self.delay), {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), f"{actions!r} is not in {self.action_space}"
        resetting = self._resetting
        queried = (self._step == self.delay + 1) & ~resetting
        reward = (queried & (actions == self._cue)).astype(np.float64)
        self._step = np.where(resetting, 0, self._step + 1)
        self._cue[resetting] = self.np_random.integers(self.cues, size=np.count_nonzero(resetting))
        truncated = self._step >= self.max_episode_steps
        self._resetting = queried | truncated
        obs = observations(self._cue, self._step, self.cues, self.delay)
        return obs, reward, queried, truncated, {}
