"""Environments for tests, of the current Gymnasium API and of the old one."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Mixed(gymnasium.Env):
    """A nested observation, drawn at random; episodes of seven steps."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (6, 6, 3), np.uint8),
            "rest": spaces.Tuple(
                [
                    spaces.Discrete(5, start=-2),
                    spaces.MultiDiscrete([3, 4]),
                    spaces.MultiBinary(3),
                    spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
                ]
            ),
        }
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 7
        return self.seen(), {"lives": 3, "note": "text"}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.seen(), float(action[0]) / 3, self.left == 0, False, {"lives": self.left % 3}

    def seen(self):
        draw = self.np_random
        return {
            "picture": draw.integers(256, size=(6, 6, 3)).astype(np.uint8),
            "rest": (
                np.int64(draw.integers(-2, 3)),
                draw.integers([3, 4]),
                draw.integers(2, size=3).astype(np.int8),
                draw.random(2),
            ),
        }


class Old:
    """The old API: `seed` beside `reset`, four values from `step`, truncation in the info."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"render.modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length: int = 5):
        self.length = length
        self.random = np.random.RandomState()

    def seed(self, seed=None):
        self.random = np.random.RandomState(seed)
        return [seed]

    def reset(self):
        self.steps = 0
        return self.seen()

    def step(self, action):
        self.steps += 1
        done = self.steps == self.length
        cut = done and self.random.rand() < 0.5
        return self.seen(), float(action), done, {"TimeLimit.truncated": True} if cut else {}

    def render(self, mode="human"):
        assert mode == "rgb_array"
        return np.full((2, 3, 3), self.steps, np.uint8)

    def close(self):
        pass

    def seen(self):
        return self.random.rand(2).astype(np.float32)


class Film(gymnasium.Env):
    """Images whose red channel is 10 t in frame t; episodes end at frame 9."""

    observation_space = spaces.Box(0, 255, (4, 6, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.frame = 0
        return self.picture(), {}

    def step(self, action):
        self.frame += 1
        return self.picture(), 1.0, self.frame == 9, False, {}

    def picture(self):
        image = np.zeros((4, 6, 3), np.uint8)
        image[..., 0] = 10 * self.frame
        return image


class Failing(gymnasium.Env):
    """Raises at action 1, and raises SystemExit at action 2."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            raise RuntimeError("the wheel came off")
        if action == 2:
            raise SystemExit(3)
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Large(gymnasium.Env):
    """Observations of a million bytes."""

    observation_space = spaces.Box(0, 255, (1_000_000,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1_000_000, np.uint8), {}

    def step(self, action):
        return np.zeros(1_000_000, np.uint8), 0.0, False, False, {}
