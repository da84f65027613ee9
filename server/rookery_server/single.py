"""One interface for single environments of Gym and Gymnasium."""

from __future__ import annotations

import inspect
from typing import Any, Tuple

import numpy as np

Reset = Tuple[Any, dict]
Step = Tuple[Any, float, bool, bool, dict]


class SingleEnv:
    """`reset(seed)` and `step` with five values for any environment.

    In the old interface `step` returns four values, with "TimeLimit.truncated" in the info if
    `done` is a truncation, and `reset` may return the observation alone or take no seed.
    """

    def __init__(self, env: Any):
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._reset_takes_seed = reset_takes_seed(env)

    def reset(self, seed: int | None = None) -> Reset:
        if seed is None:
            result = self.env.reset()
        elif self._reset_takes_seed:
            result = self.env.reset(seed=seed)
        else:
            self.env.seed(seed)
            result = self.env.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> Step:
        result = self.env.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> np.ndarray:
        """Return an RGB image, [H, W, 3]."""
        if getattr(self.env, "render_mode", None) == "rgb_array":
            return self.env.render()
        return self.env.render(mode="rgb_array")

    def close(self) -> None:
        self.env.close()


class EnvLayer:
    """A wrapper around a `SingleEnv`, which does everything that is not overridden."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space

    def reset(self, seed: int | None = None) -> Reset:
        return self.inner.reset(seed)

    def step(self, action: Any) -> Step:
        return self.inner.step(action)

    def render(self) -> np.ndarray:
        return self.inner.render()

    def close(self) -> None:
        self.inner.close()


class TimeLimit(EnvLayer):
    """Truncates episodes after `steps` steps."""

    def __init__(self, inner: Any, steps: int):
        super().__init__(inner)
        self.steps = steps
        self._taken = 0

    def reset(self, seed: int | None = None) -> Reset:
        self._taken = 0
        return self.inner.reset(seed)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        self._taken += 1
        return obs, reward, terminated, truncated or self._taken >= self.steps, info


def reset_takes_seed(env: Any) -> bool:
    """True if `reset` of the environment and of all its wrappers takes a seed."""
    while True:
        parameters = inspect.signature(env.reset).parameters
        passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if not passes_on and "seed" not in parameters:
            return False
        inner = getattr(env, "env", None)
        if not hasattr(inner, "reset"):
            return True
        env = inner
