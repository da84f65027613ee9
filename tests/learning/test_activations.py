"""Measurements of layers against hand-worked answers."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import nn

from rookery.learning.activations import (
    ActivationRecorder,
    dormant_share,
    effective_rank,
    saturated_share,
)
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig


def test_dormant_units_are_those_below_a_fortieth_of_the_mean():
    # Mean sizes 1, 1, 0.05 and 0.04; the mean over units is 0.5225, and 0.025 of it 0.0131.
    rows = torch.tensor([[1.0, -1.0, 0.05, 0.04], [-1.0, 1.0, -0.05, 0.04]])
    assert dormant_share(rows) == 0
    # With 0.0131 a fourth unit of size 0.01 is dormant, and one of exactly 0 too.
    assert dormant_share(torch.tensor([[1.0, 1.0, 0.05, 0.01]])) == 0.25
    assert dormant_share(torch.tensor([[1.0, 0.0, 0.0, 0.0]])) == 0.75
    assert dormant_share(torch.zeros(3, 5)) == 1


def test_saturated_units_are_near_a_limit_in_most_rows():
    rows = torch.zeros(100, 4)
    rows[:, 0] = 0.98  # always
    rows[:, 1] = -0.99  # at the other limit
    rows[:94, 2] = 1.0  # in 94 % of the rows
    assert saturated_share(rows, (-1.0, 1.0)) == 0.5
    rows[94, 2] = -1.0  # in 95 %
    assert saturated_share(rows, (-1.0, 1.0)) == 0.75
    assert saturated_share(torch.tensor([[0.0, 0.5, 1.0]]), (0.0, 1.0)) == pytest.approx(2 / 3)


def test_effective_rank_counts_singular_values_with_99_percent_of_the_sum():
    assert effective_rank(torch.diag(torch.tensor([98.0, 1.0, 0.5, 0.5]))) == 2
    assert effective_rank(torch.eye(6)) == 6
    assert effective_rank(torch.ones(8, 5)) == 1
    assert effective_rank(torch.zeros(8, 5)) == 0


def test_recorder_names_activations_by_their_layer():
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    x = torch.randn(5, 3)
    with ActivationRecorder(network) as recorder:
        out = network(x)
    assert list(recorder.found) == ["0", "2"]
    torch.testing.assert_close(recorder.found["0"].rows, network[:2](x))
    torch.testing.assert_close(recorder.found["2"].rows, out)
    assert recorder.found["0"].limits is None
    assert recorder.found["2"].limits == (-1.0, 1.0)
    assert torch.equal(recorder.input, x)
    network(x)
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_recorder_sees_every_dense_layer_of_a_policy(core):
    space = spaces.Box(-1, 1, (3,), np.float32)
    network = ActorCritic(space, spaces.Discrete(2), NetConfig(core=core, hidden=(5, 4)))
    with ActivationRecorder(network) as recorder:
        network.step(torch.randn(6, 3), network.initial_state(6, torch.device("cpu")))
    trunks = ["policy_trunk", "value_trunk"]
    layers = ["dense.0", "dense.2", *([] if core == "none" else ["core.rnn"])]
    assert list(recorder.found) == [f"{trunk}.{layer}" for trunk in trunks for layer in layers]
    assert recorder.found["policy_trunk.dense.2"].rows.shape == (6, 4)


def test_units_of_a_convolution_are_its_channels_and_pixels_are_scaled():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    network = ActorCritic(space, spaces.Discrete(2), NetConfig())
    images = torch.full((2, 4, 84, 84), 255, dtype=torch.uint8)
    with ActivationRecorder(network) as recorder:
        network.policy(images)
    assert recorder.input.amax() == pytest.approx(1)
    shapes = [tuple(each.rows.shape) for each in recorder.found.values()]
    assert shapes == [(2 * 20 * 20, 32), (2 * 9 * 9, 64), (2 * 7 * 7, 64), (2, 512)]
    first = recorder.found["policy_trunk.encoder.convolutions.0"].rows[0]
    conv = network.policy_trunk.encoder.convolutions[0]
    torch.testing.assert_close(first, conv(images[:1].float() / 255).relu()[0, :, 0, 0])
