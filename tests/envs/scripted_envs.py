"""Environments with scripted rewards, episode ends and failures."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs import register_env


class Scripted(VectorEnv):
    """A NEXT_STEP vector environment that plays back rows: one list of dicts per lane.

    A row may contain reward, terminated, truncated, lives and obs. Actions are recorded.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, lanes, lives=None, obs_space=None):
        self.lanes, self.first_lives, self.num_envs = lanes, lives, len(lanes)
        self.single_observation_space = obs_space or spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.t = 0
        info = {} if self.first_lives is None else {"lives": np.array(self.first_lives)}
        return np.zeros((self.num_envs, *self.single_observation_space.shape), np.float32), info

    def step(self, actions):
        self.actions.append(np.array(actions).tolist())
        rows = [lane[self.t] for lane in self.lanes]
        self.t += 1
        obs = np.array([[row.get("obs", self.t)] for row in rows], np.float32)
        reward = np.array([row.get("reward", 0) for row in rows], np.float64)
        terminated = np.array([row.get("terminated", False) for row in rows])
        truncated = np.array([row.get("truncated", False) for row in rows])
        info = {}
        if self.first_lives is not None:
            info["lives"] = np.array([row["lives"] for row in rows])
        return obs, reward, terminated, truncated, info


class Counter(gymnasium.Env):
    """Observes its step count up to `length`; returns or raises `wrong` at step `at`."""

    def __init__(self, space=None, wrong: Any = None, at: int = 3, length: int = 5, reward=1.0):
        self.observation_space = space or spaces.Box(0, 100, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.wrong, self.at, self.length, self.reward = wrong, at, length, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        obs = self._obs()
        reward = self.reward if self.t == self.at else 1.0
        if self.t == self.at and self.wrong is not None:
            if isinstance(self.wrong, Exception):
                raise self.wrong
            obs = self.wrong
        return obs, reward, self.t >= self.length, False, {}

    def _obs(self):
        space = self.observation_space
        if isinstance(space, spaces.Box):
            return np.full(space.shape, min(self.t, float(space.high.max())), space.dtype)
        return space.sample()


class OldStyle:
    """An environment with the four-value API of old Gym, without Gymnasium."""

    class Discrete:
        def __init__(self, n):
            self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)

    class Box:
        def __init__(self, low, high):
            self.low, self.high = np.float32(low), np.float32(high)
            self.shape, self.dtype = self.low.shape, self.low.dtype

    def __init__(self, limit=3, by_time=True):
        self.observation_space = OldStyle.Box([0.0], [100.0])
        self.action_space = OldStyle.Discrete(2)
        self.limit, self.by_time, self.seeds = limit, by_time, []

    def seed(self, seed):
        self.seeds.append(seed)

    def reset(self):
        self.t = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.t += 1
        done = self.t == self.limit
        info = {"TimeLimit.truncated": True} if done and self.by_time else {}
        return np.full(1, self.t, np.float32), 1.0, done, info


class OldWrapper:
    """A wrapper of Gym 0.21: it forwards all keywords and missing attributes."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, **kwargs):
        return self.env.reset(**kwargs)

    def step(self, action):
        return self.env.step(action)

    def seed(self, seed=None):
        return self.env.seed(seed)


class OldEnv:
    """A stand-in for the base class of the package `gym`."""


OldEnv.__module__, OldEnv.__name__ = "gym.core", "Env"


class OldGym(OldStyle, OldEnv):
    """An environment class of old Gym."""


class Vector(SyncVectorEnv):
    """A vector environment that is found by its class."""

    def __init__(self, num_envs):
        super().__init__([Counter] * num_envs)


def made_here(length=4):
    """Return a Counter; registered as "made-here"."""
    return Counter(length=length)


register_env("made-here", made_here, replace=True)


called = []


def not_registered(**kwargs):
    """Record the call and return an environment."""
    called.append(kwargs)
    return Counter()


class NotAnEnvironment(OldStyle):
    """An unregistered class with the API of an environment; it records its construction."""

    def __init__(self, **kwargs):
        called.append(kwargs)
        super().__init__()
