"""net.per_action: a policy that scores one row of the observation per action."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from rookery.errors import BadInput
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig
from rookery.networks.q import QHeadConfig, QNetwork

ROWS = spaces.Box(-1, 1, (5, 3), np.float32)
FIVE = spaces.Discrete(5)


def scorer(**options):
    network = ActorCritic(ROWS, FIVE, NetConfig(per_action=True, **options))
    with torch.no_grad():
        network.head.linear.weight.normal_()
    return network


def test_an_actions_logit_depends_on_its_row_only():
    network = scorer()
    obs = torch.randn(4, 2, 5, 3)
    before = network.policy(obs)
    assert before.shape == (4, 2, 5)
    changed = obs.clone()
    changed[..., 3, :] += 1
    moved = (network.policy(changed) != before).any((0, 1))
    assert moved.tolist() == [False, False, False, True, False]


def test_permuted_rows_give_permuted_logits():
    network, order = scorer(), torch.tensor([3, 0, 4, 1, 2])
    obs = torch.randn(6, 5, 3)
    torch.testing.assert_close(network.policy(obs[:, order]), network.policy(obs)[:, order])


def test_the_value_sees_all_rows_and_the_first_policy_is_uniform():
    network = ActorCritic(ROWS, FIVE, NetConfig(per_action=True))
    obs = torch.randn(2, 5, 3)
    params, value = network(obs, ())
    assert params.tolist() == [[0] * 5] * 2
    assert value.shape == (2,)
    for row in range(5):
        changed = obs.clone()
        changed[:, row] += 1
        assert (network.value(changed) != value).all()
    # Policy: rows of 3 to 64, 64, 1; value: 15 to 64, 64, 1.
    policy = (3 + 1) * 64 + (64 + 1) * 64 + 65
    assert sum(p.numel() for p in network.parameters()) == policy + (15 + 1) * 64 + 65 * 64 + 65


def test_without_a_critic_the_value_of_an_observation_is_0():
    network = ActorCritic(ROWS, FIVE, NetConfig(per_action=True), critic=False)
    params, value, _ = network.step(torch.randn(2, 5, 3), ())
    assert params.shape == (2, 5)
    assert value.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        (spaces.Box(-1, 1, (4, 3), np.float32), FIVE),
        (spaces.Box(-1, 1, (5,), np.float32), FIVE),
        (spaces.Box(-1, 1, (5, 3, 2), np.float32), FIVE),
        (spaces.Dict(rows=ROWS), FIVE),
        (ROWS, spaces.MultiDiscrete([5])),
    ],
)
def test_other_spaces_are_errors(obs, action):
    with pytest.raises(BadInput, match=r"net\.per_action needs observations \[actions, features\]"):
        ActorCritic(obs, action, NetConfig(per_action=True))


def test_cores_shared_layers_and_q_networks_are_errors():
    for options in ({"core": "lstm"}, {"shared": True}):
        with pytest.raises(BadInput, match=r"net\.per_action needs net\.core=none"):
            NetConfig(per_action=True, **options)
    with pytest.raises(BadInput, match=r"net\.per_action=true is not supported by Q-networks"):
        QNetwork(ROWS, 5, NetConfig(per_action=True), QHeadConfig())
