"""A vector environment that steps single environments one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env, Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rookery.envs.spaces import check_supported, dotted, part_at, space_leaves
from rookery.envs.wrappers.episodes import Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import RunFailed, require

Write = Callable[[int, Any], None]
"""Function that writes the observation of environment i into a buffer."""


class ForLoop(VectorEnv[Any, Any, Any]):
    """Like Gymnasium's SyncVectorEnv, but faster, and it checks shapes and dtypes.

    The returned observation is one buffer, overwritten by the next step.
    """

    engine = "for-loop"

    def __init__(self, env_fns: Sequence[Callable[[], Env[Any, Any]]], name: str = "environment"):
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.spec = first.spec
        self.render_mode = first.render_mode
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        check_supported(name, first.observation_space, first.action_space)
        for env in self.envs[1:]:
            require(
                env.observation_space == first.observation_space
                and env.action_space == first.action_space,
                f'envs: copies of "{name}" must have equal spaces, got observation spaces '
                f"{env.observation_space} and {first.observation_space}",
            )
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self._obs: Any = create_empty_array(first.observation_space, self.num_envs, np.zeros)
        self._write = writer(first.observation_space, self._obs)
        self._resetting = [False] * self.num_envs
        self._plain = isinstance(first.action_space, (spaces.Box, spaces.MultiBinary))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Reset:
        """Reset all environments; i is seeded with `seed + i`, or with entry i of a sequence."""
        seeds: Sequence[int | None] = (
            [None if seed is None else seed + i for i in range(self.num_envs)]
            if seed is None or isinstance(seed, (int, np.integer))
            else seed
        )
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            obs, info = env.reset(seed=seeds[i], options=options)
            self._write(i, obs)
            if info:
                infos = self._add_info(infos, info, i)
        self._resetting = [False] * self.num_envs
        return self._obs, infos

    def step(self, actions: Any) -> Step:
        """Reset the environments whose episode ended; step the others."""
        rewards = np.zeros(self.num_envs)
        terminations = np.zeros(self.num_envs, bool)
        truncations = np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for i, action in enumerate(self._split(actions)):
            env = self.envs[i]
            if self._resetting[i]:
                obs, info = env.reset()
                self._resetting[i] = False
            else:
                obs, reward, terminated, truncated, info = env.step(action)
                rewards[i] = reward
                if terminated or truncated:
                    terminations[i], truncations[i] = terminated, truncated
                    self._resetting[i] = True
            self._write(i, obs)
            if info:
                infos = self._add_info(infos, info, i)
        return self._obs, rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...]:
        """Return one frame per environment."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _split(self, actions: Any) -> Any:
        # Box actions iterate by row; for discrete ones `iterate` gives NumPy integers.
        return actions if self._plain else iterate(self.action_space, actions)


def writer(space: Space[Any], buffer: Any) -> Write:
    """Return the function that writes an observation into row i of a nested `buffer`."""
    parts = [
        (path, leaf_writer(leaf, part_at(buffer, path), dotted(path)))
        for path, leaf in space_leaves(space)
    ]
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]

    def write(i: int, obs: Any) -> None:
        for path, put in parts:
            try:
                value = part_at(obs, path)
            except (KeyError, IndexError, TypeError):
                raise RunFailed(f'returned an observation without "{dotted(path)}"') from None
            put(i, value)

    return write


def leaf_writer(leaf: Space[Any], buffer: Array, where: str) -> Write:
    """Return the function that writes one array into row i of `buffer`; it raises if shape or
    dtype do not fit the space."""
    shape, dtype = buffer.shape[1:], buffer.dtype
    place = f' at "{where}"' if where else ""

    def write(i: int, value: Any) -> None:
        if not isinstance(value, np.ndarray):
            value = np.asarray(value)
        if value.shape != shape:
            raise RunFailed(
                f"returned an observation of shape {value.shape}{place}, its space has {shape}"
            )
        if value.dtype != dtype and not np.can_cast(value.dtype, dtype, "same_kind"):
            raise RunFailed(
                f"returned an observation of dtype {value.dtype}{place}, its space has {dtype}"
            )
        buffer[i] = value

    return write
