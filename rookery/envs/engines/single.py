"""Single environments: today's API around yesterday's, and preprocessing one at a time."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import numpy as np
from gymnasium import Env, Wrapper, spaces, wrappers

from rookery.envs.options import EnvOptions
from rookery.envs.spaces import modern_space
from rookery.envs.wrappers.episodes import no_op
from rookery.errors import BadInput, missing_extra


class Modern(Env[Any, Any]):
    """Any object with spaces, `reset` and `step`, in Gymnasium's API.

    Four values from `step` are the old API: `done` is a truncation where the info says
    "TimeLimit.truncated". A `reset` that returns the observation alone, or takes no seed, is
    seen to as well.
    """

    def __init__(self, env: Any):
        self.env = env
        self.observation_space = modern_space(env.observation_space)
        self.action_space = modern_space(env.action_space)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None) if isinstance(env, Env) else None
        self._takes = accepted(env, ("seed", "options"))

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


def accepted(env: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` that the environment's `reset` takes as keywords, through all that wraps it.

    Wrappers of the old Gym hand on any keyword, whether or not what they wrap takes it.
    """
    try:
        parameters = inspect.signature(env.reset).parameters
    except (TypeError, ValueError):
        return ()
    named = tuple(name for name in names if name in parameters)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return named
    inner = getattr(env, "env", None)
    # Gymnasium's environments take both by contract; one may keep a simulator as its `env`.
    if isinstance(env, Env) or not hasattr(inner, "reset"):
        return names
    handed_on = accepted(inner, names)
    return tuple(name for name in names if name in named or name in handed_on)


class FrameSkip(Wrapper[Any, Any, Any, Any]):
    """Plays each action N times, sums the rewards, and stops where the episode does."""

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
    """Starts an episode with 1 to N no-ops; an episode that they end starts over."""

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
    """Whether an option asks for preprocessing that is done one environment at a time."""
    return bool(
        (options.frame_skip or 1) > 1
        or options.resize
        or options.grey
        or options.noops
        or options.sticky
    )


def preprocess(name: str, env: Env[Any, Any], options: EnvOptions) -> Env[Any, Any]:
    """`env` with what the options ask of one frame; images stay [H, W, C], grey ones [1, H, W]."""
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
    """Grey and resize are for [H, W, 3] images of bytes."""
    space = env.observation_space
    image = (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[-1] == 3
    )
    if not image:
        raise BadInput(
            f'env.grey and env.resize need uint8 images [H, W, 3], and "{name}" observes {space}'
        )


def refuse_without_noop(name: str, env: Env[Any, Any]) -> None:
    """Random no-ops need an action that does nothing: the first if it is called NOOP, or 0.0."""
    if isinstance(env.action_space, spaces.Box):
        return
    meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", list)()
    if not meanings or meanings[0] != "NOOP":
        raise BadInput(f'env.noops needs a no-op action, and "{name}" names none: set env.noops=0')
