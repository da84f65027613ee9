"""Parameters as views of one vector: functions, gradients and updates stay the same."""

import copy

import pytest
import torch
from scenes import CPU
from torch import nn

from rookery.algorithms.base import OptimizerConfig
from rookery.learning.learner import make_optimizer
from rookery.networks.flat import FlatParameters


def a_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 2), nn.Flatten(), nn.Linear(18, 4)
    )


def images(seed=0):
    return torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_flattening_keeps_the_weights_and_the_function():
    network = a_network()
    before, output = copy.deepcopy(network.state_dict()), network(images())
    flat = FlatParameters(network, CPU, spare=3)
    assert flat.values.numel() == sum(x.numel() for x in before.values())
    assert len(flat.spare) == 3
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(network(images()), output)


def test_the_vector_and_the_parameters_are_the_same_memory():
    network = a_network()
    flat = FlatParameters(network, CPU)
    start, size = flat.values.data_ptr(), flat.values.numel() * 4
    for p in network.parameters():
        assert start <= p.data_ptr() < start + size
    with torch.no_grad():
        flat.values.fill_(0.25)
    assert all(bool((p == 0.25).all()) for p in network.parameters())
    network[4].bias.data.fill_(3)
    assert flat.values[-4:].tolist() == [3, 3, 3, 3]
    flat.copy_from(torch.full_like(flat.values, 2.0))
    assert all(bool((p == 2).all()) for p in network.parameters())


def test_gradients_accumulate_in_the_flat_vector():
    network = a_network()
    plain = copy.deepcopy(network)
    flat = FlatParameters(network, CPU, spare=2)
    network(images()).square().sum().backward()
    plain(images()).square().sum().backward()
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    norm = torch.stack([p.grad.norm() for p in plain.parameters()]).norm()
    torch.testing.assert_close(flat.grad.norm(), norm)
    assert flat.values.grad is flat.grad or flat.values.grad.data_ptr() == flat.grad.data_ptr()
    assert flat.spare.tolist() == [0, 0]
    flat.buffer.zero_()
    assert all(bool((p.grad == 0).all()) for p in network.parameters())


def test_convolution_weights_are_channels_last():
    network = a_network()
    FlatParameters(network, CPU)
    for layer in (network[0], network[2]):
        assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert layer.weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_a_shared_parameter_is_stored_once():
    layer = nn.Linear(3, 3)
    assert FlatParameters(nn.Sequential(layer, layer), CPU).values.numel() == 12


def reference(name, parameters):
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.01, eps=1e-5)
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=0.01, eps=1e-5, alpha=0.95, centered=True)
    return torch.optim.SGD(parameters, lr=0.01)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_the_flat_optimizer_equals_torchs_on_separate_parameters(name):
    network = a_network()
    plain = copy.deepcopy(network)
    flat = FlatParameters(network, CPU)
    ours = make_optimizer(flat.values, OptimizerConfig(optimizer=name, learning_rate=0.01))
    theirs = reference(name, plain.parameters())
    for i in range(6):
        flat.buffer.zero_()
        network(images(i)).square().mean().backward()
        clipped = torch.nn.utils.clip_grad_norm_([flat.values], 0.1)
        ours.step()
        theirs.zero_grad()
        plain(images(i)).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        theirs.step()
        assert norm > 0.1
        torch.testing.assert_close(clipped, norm, rtol=1e-3, atol=1e-5)
    for a, b in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
