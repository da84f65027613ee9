"""Single environments: an adapter for the old Gym API, and preprocessing."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import numpy as np
from gymnasium import Env, Wrapper, spaces, wrappers

from rookery.envs.options import EnvOptions
from rookery.envs.spaces import gymnasium_space
from rookery.envs.wrappers.episodes import no_op
from rookery.errors import BadInput, missing_extra


class GymnasiumAdapter(Env[Any, Any]):
    """Adapter from any object with spaces, `reset` and `step` to Gymnasium's API.

    Four values from `step` are the old API: `done` is a truncation if info contains
    "TimeLimit.truncated". A `reset` that returns only the observation, or takes no seed, also
    works.
    """

    def __init__(self, env: Any):
        self.env = env
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None) if isinstance(env, Env) else None
        self._takes = accepted_keywords(env, ("seed", "options"))

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        given = {"seed": seed, "options": options}
        if seed is not None and "seed" not in self._takes and hasattr(self.env, "seed"):
            self.env.seed(seed)
        result = self.env.reset(**{key: given[key] for key in self._takes})
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


def accepted_keywords(env: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `names` that `reset` takes as keywords, also inside wrappers.

    Wrappers of old Gym pass any keyword on, even if the wrapped `reset` does not take it.
    """
    try:
        parameters = inspect.signature(env.reset).parameters
    except (TypeError, ValueError):
        return ()
    named = tuple(name for name in names if name in parameters)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return named
    inner = getattr(env, "env", None)
    # Gymnasium's environments must take both; their `env` may be a simulator instead.
    if isinstance(env, Env) or not hasattr(inner, "reset"):
        return names
    passed_on = accepted_keywords(inner, names)
    return tuple(name for name in names if name in named or name in passed_on)


class FrameSkip(Wrapper[Any, Any, Any, Any]):
    """Repeats each action N times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: Env[Any, Any], frames: int):
        super().__init__(env)
        self.frames = frames

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.frames):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class RandomNoops(Wrapper[Any, Any, Any, Any]):
    """Starts an episode with 1 to N no-ops; if they end it, it is reset."""

    def __init__(self, env: Env[Any, Any], most: int):
        super().__init__(env)
        self.most = most
        self._noop = no_op(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.unwrapped.np_random.integers(1, self.most + 1))):
            obs, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


def wraps_single(options: EnvOptions) -> bool:
    """True if an option needs preprocessing that works on single environments only."""
    return bool(
        (options.frame_skip or 1) > 1
        or options.resize
        or options.grey
        or options.noops
        or options.sticky
    )


def preprocess(name: str, env: Env[Any, Any], options: EnvOptions) -> Env[Any, Any]:
    """Return `env` with the preprocessing of single frames; colour images stay [H, W, C], grey
    ones become [1, H, W]."""
    if options.sticky:
        env = wrappers.StickyAction(env, options.sticky)
    if options.noops:
        refuse_without_noop(name, env)
        env = RandomNoops(env, options.noops)
    if (options.frame_skip or 1) > 1:
        env = FrameSkip(env, options.frame_skip or 1)
    if options.grey or options.resize:
        refuse_non_image(name, env)
    if options.grey:
        env = wrappers.GrayscaleObservation(env, keep_dim=False)
    if options.resize:
        if importlib.util.find_spec("cv2") is None:
            raise missing_extra("env.resize", "image")
        height, width = options.resize
        env = wrappers.ResizeObservation(env, (height, width))
    if options.grey:
        env = wrappers.ReshapeObservation(env, (1, *(env.observation_space.shape or ())))
    return env


def refuse_non_image(name: str, env: Env[Any, Any]) -> None:
    """Raise unless observations are uint8 images [H, W, 3]."""
    space = env.observation_space
    image = (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[-1] == 3
    )
    if not image:
        raise BadInput(
            f'env.grey and env.resize need uint8 images [H, W, 3], and "{name}" has {space}: '
            "remove them"
        )


def refuse_without_noop(name: str, env: Env[Any, Any]) -> None:
    """Raise unless some action does nothing: zeros in a Box, or a first action called NOOP."""
    if isinstance(env.action_space, spaces.Box):
        return
    meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", list)()
    if not meanings or meanings[0] != "NOOP":
        raise BadInput(f'env.noops needs a no-op action, and "{name}" has none: set env.noops=0')
