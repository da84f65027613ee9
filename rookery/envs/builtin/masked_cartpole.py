"""CartPole without its velocities: the smallest task that needs memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

NAME = "rookery/MaskedCartPole-v1"
SEEN = [0, 2]
"""Cart position and pole angle, in CartPole's observation."""


def masked(space: Any) -> spaces.Box:
    """The part of CartPole's observation space that is left."""
    return spaces.Box(space.low[SEEN], space.high[SEEN], dtype=np.float32)


class MaskedCartPole(CartPoleEnv):
    """CartPole-v1 that shows position and angle only."""

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
    """The same for many at once."""

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


def register() -> None:
    """Make the environment known to Gymnasium, once."""
    if NAME not in gymnasium.registry:
        gymnasium.register(
            NAME,
            entry_point="rookery.envs.builtin.masked_cartpole:MaskedCartPole",
            vector_entry_point="rookery.envs.builtin.masked_cartpole:MaskedCartPoleVector",
            max_episode_steps=500,
            reward_threshold=475.0,
        )
