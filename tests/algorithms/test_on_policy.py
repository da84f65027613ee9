"""What PPO and VPG share: moments that add up, values where they are needed."""

import pytest
import torch
from scenes import FLAT, Lanes, Loop, a_batch, make

from rookery.algorithms import ALGORITHMS, algorithm_class
from rookery.algorithms.base import Algorithm, OptimizerConfig
from rookery.algorithms.on_policy import moments, standardise, values
from rookery.algorithms.ppo import PPO, PPOConfig
from rookery.algorithms.vpg import VPG, VPGConfig
from rookery.errors import BadInput
from rookery.networks.build import NetConfig


def test_moments_count_unmasked_values_only():
    value = torch.tensor([[1.0, 2, 100], [3, 100, -1]])
    mask = torch.tensor([[1.0, 1, 0], [1, 0, 1]])
    assert moments(value, mask).tolist() == [4, 5, 15]


def test_moments_keep_small_deviations_beside_large_means():
    value = 10_000 + torch.tensor([[-0.5, 0.5]])
    ones = torch.ones_like(value)
    assert standardise(value, moments(value, ones)).tolist() == [[-1, 1]]


def test_standardise_by_hand():
    value = torch.tensor([0.0, 2, 4, 6])  # mean 3, deviation sqrt(5)
    m = moments(value, torch.ones(4))
    root = 5**0.5
    expected = torch.tensor([-3.0, -1, 1, 3])
    torch.testing.assert_close(standardise(value, m), expected / root)
    torch.testing.assert_close(standardise(value, m, scale=False), expected)
    torch.testing.assert_close(standardise(value, m, centre=False), value / root)
    assert torch.equal(standardise(value, m, centre=False, scale=False), value)


def test_equal_values_standardise_to_zero():
    value = torch.full((7,), 0.1)
    assert standardise(value, moments(value, torch.ones(7))).tolist() == [0] * 7


@pytest.mark.parametrize("net", [{}, {"shared": True}, {"core": "lstm"}], ids=str)
def test_values_are_those_of_the_observations_and_the_one_after(net):
    env = Lanes([[(3, "truncated")], [(4, "terminated")]], see=lambda b, e, t: [b + 0.1 * t])
    algorithm = make(PPO, env, NetConfig(hidden=(8,), **net), rollout_steps=9, minibatches=1)
    segment = Loop(algorithm, env).actor.collect()
    value = values(algorithm.network, segment)
    assert value.shape == (10, 2)
    if not algorithm.network.recurrent:
        seen = torch.cat([segment.steps.obs, segment.next_obs.unsqueeze(0)])
        torch.testing.assert_close(value, algorithm.network.value(seen))


@pytest.mark.parametrize("kind", [PPO, VPG])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_batch_without_a_single_row_costs_nothing(kind, core):
    algorithm = make(kind, FLAT, NetConfig(hidden=(8,), core=core, core_size=4))
    batch = a_batch(algorithm, 3, 2, masked=1.1)
    assert batch.steps.mask.sum() == 0
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    loss.total.backward()
    assert loss.total.item() == 0
    assert all(value.item() == 0 for value in loss.metrics.values())
    grads = [p.grad for p in algorithm.network.parameters() if p.grad is not None]
    assert all(bool((grad == 0).all()) for grad in grads)


@pytest.mark.parametrize("kind", [PPO, VPG])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_losses_and_metrics_of_parts_add_up(kind, core):
    algorithm = make(kind, FLAT, NetConfig(hidden=(8,), core=core), entropy_coef=0.1)
    torch.nn.init.normal_(algorithm.network.head.linear.weight)
    batch = a_batch(algorithm, 6, 7)
    statistics = algorithm.statistics(batch)
    whole = algorithm.loss(batch, statistics)
    parts = [algorithm.loss(batch.lanes(i), statistics) for i in (slice(0, 5), slice(5, 7))]
    torch.testing.assert_close(sum(p.total for p in parts), whole.total)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(sum(p.metrics[name] for p in parts), value)


@pytest.mark.parametrize("kind", [PPO, VPG])
def test_masked_rows_change_nothing(kind):
    algorithm = make(kind, FLAT)
    batch = a_batch(algorithm, 6, 7)
    steps = batch.steps
    noise = (1 - steps.mask) * 50
    extra = {name: value + noise for name, value in steps.extra.items()}
    extra["log_prob"] = steps.extra["log_prob"]
    other = batch._replace(steps=steps._replace(extra=extra, obs=steps.obs + noise.unsqueeze(-1)))
    one, two = (algorithm.loss(b, algorithm.statistics(b)) for b in (batch, other))
    torch.testing.assert_close(one.total, two.total)


WRONG = [
    (OptimizerConfig, "learning_rate", 0.0),
    (OptimizerConfig, "learning_rate", float("nan")),
    (OptimizerConfig, "epsilon", 0.0),
    (OptimizerConfig, "max_grad_norm", -1.0),
    (PPOConfig, "learning_rate", -1.0),
    (PPOConfig, "gamma", 0.0),
    (PPOConfig, "gamma", 1.01),
    (PPOConfig, "lam", -0.1),
    (PPOConfig, "lam", 1.1),
    (PPOConfig, "rollout_steps", 0),
    (PPOConfig, "epochs", 0),
    (PPOConfig, "minibatches", 0),
    (PPOConfig, "clip", 0.0),
    (PPOConfig, "value_clip", 0.0),
    (PPOConfig, "max_kl", -0.1),
    (PPOConfig, "value_coef", -1.0),
    (PPOConfig, "entropy_coef", -1.0),
    (VPGConfig, "learning_rate", 0.0),
    (VPGConfig, "gamma", 1.5),
    (VPGConfig, "episodes", 0),
    (VPGConfig, "minibatches", 0),
    (VPGConfig, "value_coef", -1.0),
    (VPGConfig, "entropy_coef", -1.0),
]


@pytest.mark.parametrize(("config", "field", "value"), WRONG)
def test_a_value_out_of_range_is_named_with_its_field(config, field, value):
    with pytest.raises(BadInput, match=rf"algo\.{field} .*got {value}"):
        config(**{field: value})


def test_algorithms_are_found_by_name():
    assert algorithm_class("ppo") is PPO
    assert algorithm_class("vpg") is VPG
    assert set(ALGORITHMS) >= {"ppo", "vpg"}
    with pytest.raises(BadInput, match=r'unknown algorithm "pp0"\. Did you mean "ppo"'):
        algorithm_class("pp0")


def test_an_algorithm_that_forgets_its_loss_cannot_be_made():
    class Forgetful(PPO):
        loss = Algorithm.loss

    with pytest.raises(TypeError, match="abstract method loss"):
        make(Forgetful, FLAT)
