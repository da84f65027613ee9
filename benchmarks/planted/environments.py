"""Environments of the benchmark of planted faults, and wrappers that break an environment.

`inside` puts a wrapper around the environment itself, below Rookery's wrappers; `outside` changes
what the learner gets, while returns of episodes stay those of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rookery.backends import factory as backends
from rookery.data.tree import Tree, tree_map
from rookery.envs import factory
from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step

Wrap = Callable[[VectorEnv[Any, Any, Any]], VectorEnv[Any, Any, Any]]


class Patience(gymnasium.Env[Any, Any]):
    """Action 0 pays 0.1 and goes on, action 1 pays 0.9 and terminates; after 20 steps the episode
    is truncated. The observation is noise.

    With gamma 0.9 going on for ever is worth 1. Where truncations are taken for terminations, a
    step of an episode, whose number is not observed, is worth 0.6 on average, and agents stop.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    limit = 20

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return noise(self), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        stops = bool(action == 1)
        reward = 0.9 if stops else 0.1
        return noise(self), reward, stops, not stops and self.steps == self.limit, {}


class Lottery(gymnasium.Env[Any, Any]):
    """16 rounds: action 0 pays 1, action 1 pays 10 with probability 0.06, 0.6 on average. The
    observation is noise.

    Rare wins have the largest TD errors. Drawn in proportion to them without importance weights,
    a round of action 1 looks worth 10 / (1 + (0.94 / 0.06)^(1 / (1 + alpha))), 1.5 with alpha 0.6.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    rounds = 16

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return noise(self), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        wins = self.np_random.random() < 0.06
        reward = 10.0 * wins if action == 1 else 1.0
        return noise(self), float(reward), self.steps == self.rounds, False, {}


def noise(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """Return an observation without information."""
    return env.np_random.uniform(-1, 1, 1).astype(np.float32)


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls down a board of 10 x 10 fields, drawn 2 pixels wide; a paddle at the bottom
    that moves left, stays or moves right must catch it: 1, or -1 if it does not."""

    size = 10
    observation_space = spaces.Box(0, 255, (1, 20, 20), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.row, self.paddle = 0, self.size // 2
        self.column = int(self.np_random.integers(self.size))
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        board = np.zeros((self.size, self.size), np.uint8)
        board[self.row, self.column] = board[-1, self.paddle] = 255
        return board.repeat(2, 0).repeat(2, 1)[None]

    def step(self, action: Any) -> Any:
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, self.size - 1))
        self.row += 1
        ends = self.row == self.size - 1
        reward = 0.0
        if ends:
            reward = 1.0 if self.paddle == self.column else -1.0
        return self.observe(), reward, ends, False, {}


for kind in (Patience, Lottery, Catch):
    if (own := f"planted/{kind.__name__}-v0") not in gymnasium.registry:
        gymnasium.register(own, entry_point=f"{__name__}:{kind.__name__}")


class LateReward(BaseWrapper):
    """Pays each reward one step late; the last one of an episode is lost."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.held = np.zeros(env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.held = np.zeros(self.num_envs)
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        late, self.held = np.where(self.resetting, 0.0, self.held), np.array(reward, np.float64)
        self.resetting = terminated | truncated
        return obs, late, terminated, truncated, info


class LateObservation(BaseWrapper):
    """Shows each observation one step late; an episode's first is shown twice."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.held: Tree = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self.held = tree_map(np.array, obs)
        return obs, info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)

        def late(now: np.ndarray, before: np.ndarray) -> np.ndarray:
            return np.where(self.resetting.reshape(-1, *[1] * (now.ndim - 1)), now, before)

        shown, self.held = tree_map(late, obs, self.held), tree_map(np.array, obs)
        self.resetting = terminated | truncated
        return shown, reward, terminated, truncated, info


class IgnoredAction(BaseWrapper):
    """Plays action 0, whatever the agent chooses."""

    def step(self, actions: Any) -> Step:
        return self.env.step(np.zeros_like(actions))


class ScaledReward(BaseWrapper):
    """Multiplies rewards by a factor."""

    def __init__(self, env: VectorEnv[Any, Any, Any], factor: float):
        super().__init__(env)
        self.factor = factor

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return obs, reward * self.factor, terminated, truncated, info


@contextmanager
def inside(wrap: Wrap) -> Iterator[None]:
    """Wrap every environment that is made, below Rookery's wrappers."""
    make = factory.raw_vector
    with patch.object(factory, "raw_vector", lambda *args: wrap(make(*args))):
        yield


@contextmanager
def outside(wrap: Wrap) -> Iterator[None]:
    """Wrap the environments of actors, outside of Rookery's wrappers."""
    make = backends.make_env

    def wrapped(*args: Any, **settings: Any) -> VectorEnv[Any, Any, Any]:
        return wrap(make(*args, **settings))

    with patch.object(backends, "make_env", wrapped):
        yield
