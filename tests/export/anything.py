"""An environment with any spaces, and policies for it with random weights."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import torch

from rookery.backends.factory import make_algorithm, spaces_of
from rookery.config import resolve
from rookery.envs import make_env, register_env, statistics
from rookery.learning.policy import Policy

CPU = torch.device("cpu")


class Anything(gymnasium.Env):
    """Random observations; episodes of 5 to 24 steps, rewards of -3 to 3."""

    def __init__(self, observation_space, action_space):
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(5, 25))
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        reward = float(self.np_random.uniform(-3, 3))
        return self.observation_space.sample(), reward, self.left == 0, False, {}


def register_anything(name, observation_space, action_space):
    """Register `name` for such environments, each with its own copy of the space."""
    register_env(
        name, lambda: Anything(copy.deepcopy(observation_space), action_space), replace=True
    )


def policy_and_env(algorithm, environment, lanes=7, **settings):
    """Return a policy with random weights, and its environments with random moments."""
    config = resolve(algorithm, environment, settings, use_preset=False).config
    env = make_env(environment, config.env, num_envs=lanes, training=False)
    torch.manual_seed(1)
    made = make_algorithm(config, spaces_of(env), CPU)
    with torch.no_grad():
        for name, parameter in made.network.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if name.endswith("out.weight"):
                # Action values start near zero; scaled up, they depend on the observation.
                parameter.mul_(10)
    random = np.random.default_rng(1)
    for moments in statistics(env).values():
        moments.update(random.normal(0.4, 0.6, (100, *moments.shape)))
    return Policy(made, spaces_of(env), CPU), env
