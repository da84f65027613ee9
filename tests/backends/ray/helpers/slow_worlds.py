"""Environments that take their time, or fail, for tests of runs on a cluster."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Slow(gymnasium.Env):
    """Pays 1 for action 1, waits at every step, and ends after `length` of them."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, wait=0.001, length=10):
        self.wait, self.length = wait, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(self.wait)
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == self.length, False, {}


class Deadly(Slow):
    """Ends its process after some steps, as a crash in foreign code would."""

    def __init__(self, after=30):
        super().__init__(0.0)
        self.left = after

    def step(self, action):
        self.left -= 1
        if not self.left:
            os._exit(7)
        return super().step(action)


class Raising(Slow):
    """Raises after some steps."""

    def step(self, action):
        if self.t == 5:
            raise RuntimeError("the simulator lost its licence")
        return super().step(action)
