"""Noise in the weights: factorised, drawn by reset_noise, and 0 for greedy actions."""

import math

import pytest
import torch
import torch.nn.functional as F
from scenes import FLAT, make

from rookery.algorithms.dqn import DQN
from rookery.networks.encoders import NoisyLinear


def a_layer(inputs=3, outputs=4, sigma=0.5):
    torch.manual_seed(0)
    return NoisyLinear(inputs, outputs, sigma)


def test_initial_means_and_sigmas_are_those_of_the_paper():
    layer = a_layer(16, 64)
    for part in (layer.weight, layer.bias):
        assert part.abs().max() <= 1 / 4
        assert part.abs().max() > 0.2
    for part in (layer.weight_sigma, layer.bias_sigma):
        assert torch.equal(part, torch.full_like(part, 0.5 / 4))


def test_zero_noise_gives_the_dense_layer_of_the_means():
    layer, x = a_layer(), torch.randn(5, 3)
    means = F.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), means)
    layer.reset_noise(None)
    assert not torch.allclose(layer(x), means)
    layer.zero_noise()
    assert torch.equal(layer(x), means)


def test_the_output_by_hand():
    layer, x = a_layer(), torch.randn(5, 3)
    layer.weight_sigma.data.uniform_()
    layer.bias_sigma.data.uniform_()
    layer.reset_noise(torch.Generator().manual_seed(3))
    out = layer(x)
    for i in range(5):
        for o in range(4):
            total = layer.bias[o] + layer.bias_sigma[o] * layer.column[o]
            for j in range(3):
                noise = layer.column[o] * layer.row[j]
                total = total + (layer.weight[o, j] + layer.weight_sigma[o, j] * noise) * x[i, j]
            assert out[i, o].item() == pytest.approx(total.item(), abs=1e-6)


def test_statistics_of_the_noise():
    layer, rng = a_layer(), torch.Generator().manual_seed(0)
    rows, columns = [], []
    for _ in range(4_000):
        layer.reset_noise(rng)
        rows.append(layer.row.clone())
        columns.append(layer.column.clone())
    row, column = torch.stack(rows), torch.stack(columns)
    # f(e) = sign(e) sqrt|e| has mean 0 and variance E|e| = sqrt(2 / pi).
    for part in (row, column):
        assert part.mean(0).abs().max() < 0.07
        assert (part.var(0) - math.sqrt(2 / math.pi)).abs().max() < 0.06
        assert (part.pow(4).mean(0) - 1).abs().max() < 0.12  # E|e|^2 = 1
    weights = column.unsqueeze(-1) * row.unsqueeze(-2)
    assert weights.mean(0).abs().max() < 0.07
    assert (weights.var(0) - 2 / math.pi).abs().max() < 0.08
    both = torch.cat([row, column], 1)
    apart = both.T @ both / len(both) - torch.diag(both.square().mean(0))
    assert apart.abs().max() < 0.07


def test_reset_noise_draws_from_the_generator():
    layer, x = a_layer(), torch.ones(1, 3)
    generator = torch.Generator().manual_seed(1)
    outputs = []
    for _ in range(3):
        layer.reset_noise(generator)
        outputs.append(layer(x))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])
    layer.reset_noise(torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), outputs[0])


def test_means_and_sigmas_get_gradients_and_noise_is_not_in_the_state_dict():
    layer = a_layer()
    layer.reset_noise(None)
    layer(torch.randn(5, 3)).square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in layer.parameters())
    assert {name for name, _ in layer.named_parameters()} == set(layer.state_dict())


def test_greedy_actions_are_without_noise_and_exploring_ones_with_it():
    algorithm = make(DQN, FLAT, noisy=True, alpha=0.5)
    obs, nothing = torch.randn(6, 3), torch.zeros(6)
    generator = torch.Generator().manual_seed(0)

    def values(explore):
        return algorithm.act(obs, nothing, (), generator, explore).extra["value"].detach()

    noisy = [values(nothing) for _ in range(3)]
    greedy = [values(None) for _ in range(2)]
    assert not torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[1], noisy[2])
    assert torch.equal(greedy[0], greedy[1])
    head = algorithm.network.head.advantage
    features = algorithm.network.trunk(obs, ())[0]
    hidden = F.linear(features, head.hidden[0].weight, head.hidden[0].bias).tanh()
    means = F.linear(hidden, head.out.weight, head.out.bias).amax(-1)
    torch.testing.assert_close(greedy[0], means.detach())
