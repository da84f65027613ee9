"""A reward of 1 for ever is worth 1 / (1 - gamma), however short the time limit."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import Lanes, Loop, ppo

from rookery.networks.build import NetConfig

GAMMA, LIMIT = 0.9, 5


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("net", [{}, {"shared": True}], ids=str)
def test_truncation_leaves_the_endless_value(lam, net):
    env = Lanes([[(LIMIT, "truncated")], [(3, "truncated"), (4, "truncated")]])
    config = NetConfig(hidden=(), **net)
    settings = {"value_coef": 1.0, "rollout_steps": 12, "epochs": 1, "minibatches": 1}
    # A linear value of a constant observation, V = w + b: at rate 1/2 each update lands on the
    # mean target.
    algorithm = ppo(config, env, gamma=GAMMA, lam=lam, learning_rate=0.5, **settings)
    Loop(algorithm, env).run(150)
    value = algorithm.network.value(torch.ones(1))
    assert value.item() == pytest.approx(1 / (1 - GAMMA), rel=1e-3)


@pytest.mark.parametrize("ending", ["terminated", "both"])
@pytest.mark.parametrize("lam", [0.0, 0.95])
def test_termination_leaves_the_finite_sum(ending, lam):
    one_hot = np.eye(LIMIT + 1, dtype=np.float32)
    env = Lanes(
        [[(LIMIT, ending)]] * 2,
        see=lambda lane, episode, t: one_hot[t],
        obs_space=spaces.Box(0, 1, (LIMIT + 1,), np.float32),
    )
    settings = {"value_coef": 1.0, "rollout_steps": 12, "epochs": 4, "minibatches": 1}
    net = NetConfig(hidden=())
    algorithm = ppo(net, env, gamma=GAMMA, lam=lam, learning_rate=1.0, **settings)
    Loop(algorithm, env).run(60)
    value = algorithm.network.value(torch.eye(LIMIT + 1))[:LIMIT]
    expected = torch.tensor([sum(GAMMA**k for k in range(LIMIT - t)) for t in range(LIMIT)])
    torch.testing.assert_close(value.detach(), expected, rtol=1e-3, atol=1e-3)
