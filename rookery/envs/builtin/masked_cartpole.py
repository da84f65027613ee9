"""CartPole without its velocities: the smallest task that needs memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

SEEN = [0, 2]
"""Indices of cart position and pole angle in CartPole's observation."""


def masked(space: Any) -> spaces.Box:
    """Return CartPole's observation space reduced to position and angle."""
    return spaces.Box(space.low[SEEN], space.high[SEEN], dtype=np.float32)


class MaskedCartPole(CartPoleEnv):
    """CartPole-v1 that observes position and angle only."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_space = masked(self.observation_space)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs[SEEN], info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[SEEN], *rest


class MaskedCartPoleVector(CartPoleVectorEnv):
    """Vectorized MaskedCartPole."""

    def __init__(self, num_envs: int = 1, **kwargs: Any):
        super().__init__(num_envs=num_envs, **kwargs)
        self.single_observation_space = masked(self.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs[:, SEEN], info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[:, SEEN], *rest
