"""One interface for single environments of Gym and Gymnasium, and their preprocessing."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Tuple

import numpy as np

from rookery_server.errors import Unusable

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
        self._takes = accepted_keywords(env, ("seed", "options"))

    def reset(self, seed: int | None = None, options: dict | None = None) -> Reset:
        if seed is not None and "seed" not in self._takes and hasattr(self.env, "seed"):
            self.env.seed(seed)
        given = {"seed": seed, "options": options}
        result = self.env.reset(**{key: given[key] for key in self._takes})
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
    is_gymnasium = any(base.__module__ == "gymnasium.core" for base in type(env).__mro__)
    if is_gymnasium or not hasattr(inner, "reset"):
        return names
    passed_on = accepted_keywords(inner, names)
    return tuple(name for name in names if name in named or name in passed_on)


def preprocess(
    env: Any,
    frame_skip: int = 1,
    grey: bool = False,
    resize: tuple[int, int] | None = None,
    frame_stack: int = 1,
    time_limit: int | None = None,
) -> Any:
    """Return a `SingleEnv` with this preprocessing, in the order of the parameters."""
    if frame_skip > 1:
        env = FrameSkip(env, frame_skip)
    if grey:
        env = grey_images(env)
    if resize is not None:
        env = resized_images(env, resize)
    if frame_stack > 1:
        env = FrameStack(env, frame_stack)
    return TimeLimit(env, time_limit) if time_limit else env


class EnvLayer:
    """A wrapper around a `SingleEnv`, which does everything that is not overridden."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


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


class FrameSkip(EnvLayer):
    """Repeats each action N times or until the episode ends, and sums the rewards.

    An image is the pixelwise maximum of the last two frames, because some games draw objects only
    in every other frame.
    """

    def __init__(self, inner: Any, frames: int):
        super().__init__(inner)
        self.frames = frames
        self._image = is_image(inner.observation_space)

    def step(self, action: Any) -> Step:
        total = 0.0
        obs: Any = None
        before: np.ndarray | None = None
        for i in range(self.frames):
            if self._image and i == self.frames - 1:
                before = np.copy(obs)
            obs, reward, terminated, truncated, info = self.inner.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        if before is not None:
            obs = np.maximum(obs, before)
        return obs, total, terminated, truncated, info


class ChangedObservations(EnvLayer):
    """Applies a function to every observation."""

    def __init__(self, inner: Any, space: Any, change: Callable[[Any], np.ndarray]):
        super().__init__(inner)
        self.observation_space = space
        self._change = change

    def reset(self, seed: int | None = None) -> Reset:
        obs, info = self.inner.reset(seed)
        return self._change(obs), info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        return self._change(obs), reward, terminated, truncated, info


def grey_images(env: Any) -> ChangedObservations:
    """Convert images [H, W, 3] to grayscale, [1, H, W]."""
    space = require_image(env, "--grey")
    grey_space = type(space)(0, 255, (1, *space.shape[:2]), np.uint8)
    return ChangedObservations(env, grey_space, lambda image: luminance(image)[None])


def resized_images(env: Any, size: tuple[int, int]) -> ChangedObservations:
    """Resize images [H, W, 3] or [1, H, W]."""
    space = env.observation_space
    if len(space.shape) == 3 and space.shape[0] == 1:
        resize = area_resizer(space.shape[1:], size)
        resized = type(space)(0, 255, (1, *size), np.uint8)
        return ChangedObservations(env, resized, lambda image: resize(image[0])[None])
    require_image(env, "--resize")
    resize = area_resizer(space.shape[:2], size)

    def each_colour(image: np.ndarray) -> np.ndarray:
        return np.stack([resize(image[..., i]) for i in range(3)], -1)

    return ChangedObservations(env, type(space)(0, 255, (*size, 3), np.uint8), each_colour)


def luminance(image: np.ndarray) -> np.ndarray:
    """Grey [H, W] of an RGB image [H, W, 3]: 0.299 R + 0.587 G + 0.114 B in 256ths."""
    red, green, blue = (image[..., i].astype(np.uint16) for i in range(3))
    return ((77 * red + 150 * green + 29 * blue + 128) >> 8).astype(np.uint8)


def area_resizer(old: tuple[int, int], new: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that resizes uint8 images [H, W]: a pixel is the mean of its area."""
    rows, columns = area_weights(old[0], new[0]), area_weights(old[1], new[1]).T.copy()

    def resize(image: np.ndarray) -> np.ndarray:
        mean = rows @ image.astype(np.float32) @ columns
        return np.clip(mean + 0.5, 0, 255).astype(np.uint8)

    return resize


def area_weights(old: int, new: int) -> np.ndarray:
    """Return the weight of each old pixel in each new one along one axis, [new, old]."""
    edges = np.arange(new + 1) * (old / new)
    pixels = np.arange(old)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.clip(overlap, 0, None) * (new / old)).astype(np.float32)


class FrameStack(ChangedObservations):
    """Stacks the newest frames, [S, *frame], the newest last; frames [1, H, W] become [H, W]."""

    def __init__(self, inner: Any, frames: int):
        space = inner.observation_space
        if type(space).__name__ != "Box":
            raise Unusable(f"--frame-stack needs a Box as observation space, got {space}")
        self._single = len(space.shape) == 3 and space.shape[0] == 1
        low, high = (self._frame(bound) for bound in (space.low, space.high))
        self._stack = np.zeros((frames, *low.shape), space.dtype)
        stacked = type(space)(
            np.broadcast_to(np.minimum(low, 0), self._stack.shape).astype(space.dtype),
            np.broadcast_to(np.maximum(high, 0), self._stack.shape).astype(space.dtype),
            dtype=space.dtype.type,
        )
        super().__init__(inner, stacked, self._push)

    def reset(self, seed: int | None = None) -> Reset:
        self._stack[:] = 0
        return super().reset(seed)

    def _frame(self, value: Any) -> np.ndarray:
        return np.asarray(value)[0] if self._single else np.asarray(value)

    def _push(self, obs: Any) -> np.ndarray:
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._frame(obs)
        return self._stack


def is_image(space: Any) -> bool:
    """True if observations are images: uint8 with at least two axes."""
    shape = getattr(space, "shape", None) or ()
    return type(space).__name__ == "Box" and space.dtype == np.uint8 and len(shape) >= 2


def require_image(env: Any, option: str) -> Any:
    """Return the observation space; raise if the observations are not RGB images."""
    space = env.observation_space
    if not (is_image(space) and len(space.shape) == 3 and space.shape[-1] == 3):
        raise Unusable(f"{option} needs uint8 images [H, W, 3], got {space}")
    return space
