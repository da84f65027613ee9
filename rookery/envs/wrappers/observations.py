"""Vector wrappers that add to observations: stacked frames, and the mask of legal actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.spaces import Array, Path, map_leaves, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step
from rookery.errors import BadInput, require

MASK_KEY = "action_mask"

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
        stack = np.empty((len(frame), self.frame_stack, *frame.shape[1:]), frame.dtype)
        old = self._stacks.get(path)
        stack[:, :-1] = 0 if old is None else old[:, 1:]
        if np.count_nonzero(self.resetting):
            stack[self.resetting, :-1] = 0
        stack[:, -1] = frame
        self._stacks[path] = stack
        return stack


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
    if not isinstance(batched, spaces.Box):
        return batched
    view = frame_view(space)
    low, high = np.minimum(view(batched.low), 0), np.maximum(view(batched.high), 0)
    return spaces.Box(low, high, dtype=np.dtype(batched.dtype).type)


def has_action_mask(env: VectorEnv[Any, Any, Any]) -> bool:
    """True if observations contain a mask of legal actions."""
    space = env.single_observation_space
    return isinstance(space, spaces.Dict) and MASK_KEY in space.spaces


class ActionMaskWrapper(BaseWrapper):
    """Observations {"obs": ..., "action_mask": [A]} with the mask from info; a Dict observation
    gets the mask as a further key."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        obs, action = env.single_observation_space, env.single_action_space
        if not isinstance(action, spaces.Discrete):
            raise BadInput(
                f"env.action_mask needs a Discrete action space, got {action}; set it to false"
            )
        self._nested = isinstance(obs, spaces.Dict)
        parts = dict(obs.spaces) if isinstance(obs, spaces.Dict) else {"obs": obs}
        require(
            not has_action_mask(env),
            f'env.action_mask: the observation already has the key "{MASK_KEY}"; remove the option',
        )
        self._count = int(action.n)
        self.single_observation_space = spaces.Dict(
            {**parts, MASK_KEY: spaces.MultiBinary(self._count)}
        )
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = np.asarray(info.get(MASK_KEY, ()))
        missing = np.flatnonzero(~np.broadcast_to(info.get(f"_{MASK_KEY}", True), self.num_envs))
        if mask.shape != (self.num_envs, self._count) or len(missing):
            got = f"none from environment {missing[0]}" if len(missing) else f"shape {mask.shape}"
            raise BadInput(
                f'env.action_mask needs info["{MASK_KEY}"] at every reset and step,'
                f" {self._count} numbers for each of {self.num_envs} environments; got {got}"
            )
        return {**(obs if self._nested else {"obs": obs}), MASK_KEY: (mask != 0).astype(np.int8)}
