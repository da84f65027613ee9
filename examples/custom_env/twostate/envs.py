"""An environment with episodes of one step, and one with a nested observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RIGHT_ACTION = 2
PLANTS = 3


class TwoState(gymnasium.Env[Any, Any]):
    """Two states, five actions, episodes of one step: the reward is 1 for action 2, else -1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return int(self.np_random.integers(2)), {}

    def step(self, action: Any) -> Any:
        reward = 1.0 if action == RIGHT_ACTION else -1.0
        return int(self.np_random.integers(2)), reward, True, False, {}


class Greenhouse(gymnasium.Env[Any, Any]):
    """Water the driest of three plants: the reward is 1 if it is the driest, else 0.

    The observation is nested: kind and wetness of each plant, and the hour. Kinds dry at different
    speeds; only the wetness decides which plant is the driest.
    """

    def __init__(self) -> None:
        plants = spaces.Dict(
            {
                "kind": spaces.MultiDiscrete([4] * PLANTS),
                "state": spaces.Box(0.0, 1.0, (PLANTS, 1), np.float32),
            }
        )
        self.observation_space = spaces.Dict({"plants": plants, "hour": spaces.Discrete(24)})
        self.action_space = spaces.Discrete(PLANTS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.kind = self.np_random.integers(4, size=PLANTS)
        self.wet = self.np_random.random(PLANTS)
        self.hour = int(self.np_random.integers(24))
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == int(self.wet.argmin()))
        self.wet = self.wet - 0.06 * (1 + self.kind) * self.np_random.random(PLANTS)
        self.wet[int(action)] += 0.25
        self.wet = self.wet.clip(0, 1)
        self.hour = (self.hour + 1) % 24
        return self.observation(), reward, False, False, {}

    def observation(self) -> dict[str, Any]:
        """Return the observation of the current state."""
        state = self.wet[:, None].astype(np.float32)
        return {"plants": {"kind": self.kind.copy(), "state": state}, "hour": self.hour}
