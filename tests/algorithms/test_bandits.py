"""Bandits every policy gradient must solve."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import Lanes, Loop, make

from rookery.algorithms.ppo import PPO
from rookery.algorithms.vpg import VPG
from rookery.networks.build import NetConfig

SETTINGS = {
    PPO: {"learning_rate": 0.03, "rollout_steps": 16, "minibatches": 1},
    VPG: {"learning_rate": 0.05, "episodes": 64},
}


def bandit(action_space, pay, lanes=8):
    """One-step episodes."""
    ends = [[(1, "terminated")]] * lanes
    return Lanes(ends, pay=lambda lane, t, action: pay(action), action_space=action_space)


@pytest.mark.parametrize("kind", [PPO, VPG])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_paying_arm_is_found(kind, seed, core):
    env = bandit(spaces.Discrete(5), lambda action: 1.0 if action == 2 else -1.0)
    net = NetConfig(hidden=(8,), core=core, core_size=8)
    algorithm = make(kind, env, net, seed, **SETTINGS[kind])
    Loop(algorithm, env, seed).run(15)
    state = algorithm.initial_state(1)
    params, _, _ = algorithm.network.step(torch.ones(1, 1), state)
    assert params.softmax(-1)[0, 2] > 0.9


@pytest.mark.parametrize("kind", [PPO, VPG])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_continuous_action_is_found(kind, seed):
    """Pays most at 3 on an axis from 0 to 4: at 0.5 in the policy's units."""
    env = bandit(spaces.Box(0, 4, (1,), np.float32), lambda action: -float((action[0] - 3) ** 2))
    algorithm = make(kind, env, NetConfig(hidden=(8,), log_std=-0.5), seed, **SETTINGS[kind])
    Loop(algorithm, env, seed).run(30)
    decision = algorithm.act(torch.ones(1, 1), torch.zeros(1), (), None, None)
    assert abs(decision.env_action.item() - 3) < 0.5
    assert algorithm.network.head.log_std.item() < -0.8
