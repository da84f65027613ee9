"""The first operation that makes NaN or infinite numbers is named."""

import math

import pytest
import torch
from scenes import CPU, a_batch, ppo
from torch import nn

from rookery.errors import Diverged
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.nonfinite import locate
from rookery.learning.reduce import Reducer


class LogOfNegative(nn.Module):
    def forward(self, x):
        return (x - 1e6).log()


def batch_of(algorithm):
    return a_batch(algorithm, 1, 8, masked=0)


def test_layer_and_operation_of_the_first_nan():
    network = nn.Sequential(nn.Linear(3, 4), LogOfNegative(), nn.Linear(4, 1))
    x = torch.zeros(2, 3)
    found = locate(network, batch_of(ppo()), lambda: network(x).sum())
    assert found == "the first NaN came from log in the layer 1"
    assert not any(module._forward_hooks for module in network.modules())


def test_operation_in_the_loss_and_in_the_backward_pass():
    network = nn.Linear(3, 1)
    batch = batch_of(ppo())
    x = torch.zeros(2, 3)
    in_loss = locate(network, batch, lambda: (network(x).sum() * 0 - 1).sqrt())
    assert in_loss == "the first NaN came from sqrt in the loss"
    with torch.no_grad():
        network.bias.zero_()
    # The derivative of sqrt at 0 is infinite, and 0 times it is NaN.
    backward = locate(network, batch, lambda: network(x).sum().sqrt() * 0)
    assert "in the backward pass" in backward


def test_infinity_is_named_but_not_that_of_illegal_actions():
    network = nn.Linear(3, 1)
    batch, x = batch_of(ppo()), torch.full((2, 3), 100.0)
    legal = torch.tensor([[True], [False]])

    def masked():
        return network(x).masked_fill(~legal, -math.inf).amax()

    assert locate(network, batch, masked) == "computed again on this rank, the numbers are finite"
    found = locate(network, batch, lambda: (network(x).square() + 1000).exp().sum())
    assert found == "the first infinite number came from exp in the loss"


def test_bad_data_and_weights_are_named_before_operations():
    algorithm = ppo()
    batch = batch_of(algorithm)
    batch.steps.obs[0, 3, 1] = math.nan
    batch.steps.reward[0, 0] = math.inf
    loss = lambda: algorithm.network.value(batch.steps.obs).sum()  # noqa: E731
    assert locate(algorithm.network, batch, loss) == ("the batch's obs and reward are not finite")
    with torch.no_grad():
        algorithm.network.value_head.weight[0, 0] = math.nan
    clean = batch_of(algorithm)
    assert locate(algorithm.network, clean, loss) == (
        "the weights value_head.weight are not finite"
    )


@pytest.mark.parametrize("settings", [{}, {"micro_batches": 2}])
def test_divergence_is_noticed_before_the_step_with_batch_and_weights(settings):
    algorithm = ppo()
    learner = Learner(algorithm, LearnerConfig(**settings), Reducer(), CPU)
    for seed in range(4):
        learner.update(a_batch(algorithm, 1, 8, seed=seed))
    before = learner.flat.values.detach().clone()
    bad = batch_of(algorithm)
    bad.steps.extra["advantage"][0, 2] = math.nan
    with pytest.raises(
        Diverged, match="after 4 updates: the batch's advantage are not finite"
    ) as info:
        learner.update(bad)
    assert torch.equal(learner.flat.values, before)
    assert info.value.evidence.batch is bad
    saved = torch.cat([each.flatten() for each in info.value.evidence.weights.values()])
    assert torch.equal(saved, before)
