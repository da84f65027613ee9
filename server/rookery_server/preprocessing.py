"""Frame skip, grayscale, resizing, frame stack and time limit of one environment."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

from rookery_server.errors import Unusable
from rookery_server.single import EnvLayer, Reset, Step, TimeLimit


class Preprocessing(NamedTuple):
    """Settings of the preprocessing, in the order in which it is applied."""

    frame_skip: int = 1
    """Repeat each action N times; images are the maximum of the last two."""
    grey: bool = False
    """Convert images to grayscale, [1, H, W]."""
    resize: tuple[int, int] | None = None
    """Resize images to (height, width) by means over areas."""
    frame_stack: int = 1
    """Stack the newest N frames, with zeros before the first frame of an episode."""
    time_limit: int | None = None
    """Truncate episodes after N steps of the agent."""

    def wrap(self, env: Any) -> Any:
        """Return `env` with this preprocessing."""
        if self.frame_skip > 1:
            env = FrameSkip(env, self.frame_skip)
        if self.grey:
            env = grey(env)
        if self.resize is not None:
            env = resized(env, self.resize)
        if self.frame_stack > 1:
            env = FrameStack(env, self.frame_stack)
        return TimeLimit(env, self.time_limit) if self.time_limit else env


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


class TransformedImages(EnvLayer):
    """Applies a function to every observation, an image."""

    def __init__(self, inner: Any, shape: tuple[int, ...], change: Callable[[Any], np.ndarray]):
        super().__init__(inner)
        box = type(inner.observation_space)
        self.observation_space = box(0, 255, shape, np.uint8)
        self._change = change

    def reset(self, seed: int | None = None) -> Reset:
        obs, info = self.inner.reset(seed)
        return self._change(obs), info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        return self._change(obs), reward, terminated, truncated, info


def grey(env: Any) -> TransformedImages:
    """Convert images [H, W, 3] to grayscale, [1, H, W]."""
    require_image(env, "--grey")
    height, width, _ = env.observation_space.shape
    return TransformedImages(env, (1, height, width), lambda image: luminance(image)[None])


def resized(env: Any, size: tuple[int, int]) -> TransformedImages:
    """Resize images [H, W, 3] or [1, H, W]."""
    shape = env.observation_space.shape
    if len(shape) == 3 and shape[0] == 1:
        resize = area_resizer(shape[1:], size)
        return TransformedImages(env, (1, *size), lambda image: resize(image[0])[None])
    require_image(env, "--resize")
    resize = area_resizer(shape[:2], size)

    def each_colour(image: np.ndarray) -> np.ndarray:
        return np.stack([resize(image[..., i]) for i in range(3)], -1)

    return TransformedImages(env, (*size, 3), each_colour)


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


class FrameStack(EnvLayer):
    """Stacks the newest frames, [S, *frame], the newest last; frames [1, H, W] become [H, W]."""

    def __init__(self, inner: Any, frames: int):
        super().__init__(inner)
        space = inner.observation_space
        if type(space).__name__ != "Box":
            raise Unusable(f"--frame-stack needs a Box as observation space, got {space}")
        self._single = len(space.shape) == 3 and space.shape[0] == 1
        low, high = (self._frame(bound) for bound in (space.low, space.high))
        self._stack = np.zeros((frames, *low.shape), space.dtype)
        self.observation_space = type(space)(
            np.broadcast_to(np.minimum(low, 0), self._stack.shape).astype(space.dtype),
            np.broadcast_to(np.maximum(high, 0), self._stack.shape).astype(space.dtype),
            dtype=space.dtype.type,
        )

    def reset(self, seed: int | None = None) -> Reset:
        obs, info = self.inner.reset(seed)
        self._stack[:] = 0
        return self._pushed(obs), info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        return self._pushed(obs), reward, terminated, truncated, info

    def _frame(self, value: Any) -> np.ndarray:
        return np.asarray(value)[0] if self._single else np.asarray(value)

    def _pushed(self, obs: Any) -> np.ndarray:
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._frame(obs)
        return self._stack


def is_image(space: Any) -> bool:
    """True if observations are images: uint8 with at least two axes."""
    shape = getattr(space, "shape", None) or ()
    return type(space).__name__ == "Box" and space.dtype == np.uint8 and len(shape) >= 2


def require_image(env: Any, option: str) -> None:
    """Raise if the observations are not RGB images."""
    space = env.observation_space
    if not (is_image(space) and len(space.shape) == 3 and space.shape[-1] == 3):
        raise Unusable(f"{option} needs uint8 images [H, W, 3], got {space}")
