"""Legal actions that an environment tells beside its observations, put into them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.wrappers.episodes import Layer, Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput, require

KEY = "action_mask"


def tells_legal(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether observations have a mask of legal actions."""
    space = env.single_observation_space
    return isinstance(space, spaces.Dict) and KEY in space.spaces


class LegalActions(Layer):
    """Observations {"obs": ..., "action_mask": [A]}, the mask taken from info; one that is a Dict
    already gets a part more."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        seen, action = env.single_observation_space, env.single_action_space
        if not isinstance(action, spaces.Discrete):
            raise BadInput(
                f"env.action_mask needs a Discrete action space, and this one is {action}"
            )
        self._nested = isinstance(seen, spaces.Dict)
        parts = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {"obs": seen}
        require(
            not tells_legal(env),
            f'env.action_mask: the observation has a part "{KEY}" already; leave the option out',
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
        """The masks of all lanes, [B, A]."""
        mask = np.asarray(info.get(KEY, ()))
        silent = np.flatnonzero(~np.broadcast_to(info.get(f"_{KEY}", True), self.num_envs))
        if mask.shape != (self.num_envs, self._count) or len(silent):
            told = f"environment {silent[0]} told none" if len(silent) else f"got {mask.shape}"
            raise BadInput(
                f'env.action_mask needs info["{KEY}"] at every reset and step, {self._count}'
                f" numbers of each of {self.num_envs} environments; {told}"
            )
        return (mask != 0).astype(np.int8)
