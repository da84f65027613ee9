"""A wrapper that moves the mask of legal actions from info into the observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput, require

KEY = "action_mask"


def has_action_mask(env: VectorEnv[Any, Any, Any]) -> bool:
    """True if observations contain a mask of legal actions."""
    space = env.single_observation_space
    return isinstance(space, spaces.Dict) and KEY in space.spaces


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
            f'env.action_mask: the observation already has the key "{KEY}"; remove the option',
        )
        self._count = int(action.n)
        self.single_observation_space = spaces.Dict({**parts, KEY: spaces.MultiBinary(self._count)})
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {**(obs if self._nested else {"obs": obs}), KEY: self._mask(info)}

    def _mask(self, info: dict[str, Any]) -> Array:
        """Return the masks of all lanes, [B, A]."""
        mask = np.asarray(info.get(KEY, ()))
        missing = np.flatnonzero(~np.broadcast_to(info.get(f"_{KEY}", True), self.num_envs))
        if mask.shape != (self.num_envs, self._count) or len(missing):
            got = f"none from environment {missing[0]}" if len(missing) else f"shape {mask.shape}"
            raise BadInput(
                f'env.action_mask needs info["{KEY}"] at every reset and step, {self._count}'
                f" numbers for each of {self.num_envs} environments; got {got}"
            )
        return (mask != 0).astype(np.int8)
