"""Frame stacking, the same for every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.spaces import Path, map_leaves, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step, wrapper_chain
from rookery.envs.wrappers.moments import Array
from rookery.errors import require

View = Callable[[Array], Array]
Axes = Literal["drop first", "move first last", "stay"]


class FrameStack(BaseWrapper):
    """Observations [B, S, *frame]: the newest frame last, zeros before the episode's first.

    The last observation of an episode is stacked with that episode's frames; the reset row after
    it starts from zeros. Every leaf is stacked separately. An image [C, H, W] is stacked as frames
    [H, W, C], or [H, W] where C is 1, so that S is not confused with the channels. Every returned
    array is new.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], frames: int):
        super().__init__(env)
        self.frame_stack = frames
        """S, the number of frames in one observation."""
        space = env.single_observation_space
        self._views: dict[Path, View] = {
            path: frame_view(leaf) for path, leaf in space_leaves(space)
        }
        self._stacks: dict[Path, Array] = {}
        self.single_observation_space = stacked_space(space, frames)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self._stacks.clear()
        return self._stacked(obs), info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        stacked = self._stacked(obs)
        self.resetting = terminated | truncated
        return stacked, reward, terminated, truncated, info

    def _stacked(self, obs: Any) -> Any:
        return map_leaves(self.env.single_observation_space, self._push, obs)

    def _push(self, path: Path, value: Array) -> Array:
        frame = self._views[path](value)
        old = self._stacks.get(path)
        if old is None:
            stack = np.zeros((len(frame), self.frame_stack, *frame.shape[1:]), frame.dtype)
        else:
            stack = shifted(old, self.resetting)
        stack[:, -1] = frame
        self._stacks[path] = stack
        return stack


def shifted(stack: Array, emptied: Array) -> Array:
    """Return a new stack [B, S, ...], one frame older, zeros in the lanes `emptied` [B].

    The newest frame is uninitialised; the caller writes it.
    """
    new = np.empty_like(stack)
    new[:, :-1] = stack[:, 1:]
    if np.count_nonzero(emptied):
        new[emptied, :-1] = 0
    return new


def frame_axes(leaf: Space[Any]) -> Axes:
    """Return how a leaf's axes change in a frame: a single channel is dropped, channels move
    last, or all stay."""
    shape = leaf.shape or ()
    if leaf.dtype == np.uint8 and len(shape) in (3, 4) and shape[0] == 1:
        return "drop first"
    if leaf.dtype == np.uint8 and len(shape) == 3 and shape[0] < min(shape[1:]):
        return "move first last"
    return "stay"


def frame_view(leaf: Space[Any]) -> View:
    """Return the function that turns a batch of a leaf's values into frames."""
    axes = frame_axes(leaf)
    if axes == "drop first":
        return lambda batch: batch[:, 0]
    if axes == "move first last":
        return lambda batch: np.moveaxis(batch, 1, -1)
    return np.asarray


def stacked_space(space: Space[Any], frames: int) -> Space[Any]:
    """Return the space of stacks, nested like `space`; it contains the zeros of the padding."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: stacked_space(part, frames) for k, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, frames) for part in space.spaces])
    if isinstance(space, spaces.Discrete):
        require(
            space.start <= 0 < space.start + space.n,
            f"env.frame_stack pads with zeros, which {space} does not contain: set it to 1",
        )
    batched = batch_space(space, frames)
    return padded_box(batched, frame_view(space)) if isinstance(batched, spaces.Box) else batched


def padded_box(batched: spaces.Box, view: View) -> spaces.Box:
    """Return a Box of S values as a Box of S frames, with bounds that contain 0."""
    low, high = view(batched.low), view(batched.high)
    dtype: Any = batched.dtype
    return spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=dtype.type)


def frame_stack_of(env: Any) -> int:
    """Return the number of frames in one observation; 1 if no wrapper stacks."""
    return next((x.frame_stack for x in wrapper_chain(env) if isinstance(x, FrameStack)), 1)
