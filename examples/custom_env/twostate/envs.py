"""An environment of one step, and one whose observation has parts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RIGHT_ACTION = 2
PLANTS = 3


class TwoState(gymnasium.Env[Any, Any]):
    """One of two states is shown; action 2 of 5 pays 1, any other -1, and the episode ends."""

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
    """Water the driest of three plants: +1 if it is, 0 otherwise.

    The observation has parts: how wet each plant is, as a set with its kind beside it, and the
    hour. Kinds dry at different speeds; only how wet they are decides which is the driest.
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
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == int(self.wet.argmin()))
        self.wet = self.wet - 0.06 * (1 + self.kind) * self.np_random.random(PLANTS)
        self.wet[int(action)] += 0.25
        self.wet = self.wet.clip(0, 1)
        self.hour = (self.hour + 1) % 24
        return self.seen(), reward, False, False, {}

    def seen(self) -> dict[str, Any]:
        """What the agent gets to see."""
        state = self.wet[:, None].astype(np.float32)
        return {"plants": {"kind": self.kind.copy(), "state": state}, "hour": self.hour}
