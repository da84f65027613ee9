"""VPG's gradient by hand, its baselines, and how it gathers."""

import math

import pytest
import torch
from scenes import FLAT, Lanes, Loop, a_batch, make

from rookery.algorithms.vpg import VPG, VPGConfig
from rookery.errors import BadInput
from rookery.networks.build import NetConfig


def gradient(algorithm, batch):
    algorithm.network.zero_grad()
    algorithm.loss(batch, algorithm.statistics(batch)).total.backward()
    return algorithm.network.head.linear.weight.grad


def with_extra(batch, **extra):
    return batch._replace(steps=batch.steps._replace(extra=batch.steps.extra | extra))


def test_the_gradient_is_minus_the_mean_of_log_prob_times_advantage():
    net = NetConfig(hidden=())
    algorithm = make(VPG, FLAT, net, normalize_advantage=False, value_coef=0.0)
    weight = algorithm.network.head.linear.weight
    torch.nn.init.normal_(weight)
    batch = a_batch(algorithm, 3, 2)
    steps = batch.steps
    expected, count = torch.zeros_like(weight), 0
    for t in range(3):
        for b in range(2):
            if steps.mask[t, b]:
                probs = (weight @ steps.obs[t, b]).softmax(0)
                hot = torch.eye(4)[steps.action[t, b]]  # d log p_a / d logits = hot - probs
                slope = torch.outer(hot - probs, steps.obs[t, b])
                expected -= steps.extra["advantage"][t, b] * slope.detach()
                count += 1
    assert count < 6
    torch.testing.assert_close(gradient(algorithm, batch), expected / count)


def test_the_mean_baseline_subtracts_the_batchs_mean_return():
    mean = make(VPG, FLAT, baseline="mean", normalize_advantage=False)
    learned = make(VPG, FLAT, normalize_advantage=False, value_coef=0.0)
    batch = a_batch(mean, 3, 4)
    a = batch.steps.extra["advantage"]
    centred = with_extra(batch, advantage=a - a[batch.steps.mask > 0].mean())
    torch.testing.assert_close(gradient(mean, batch), gradient(learned, centred))
    assert not torch.allclose(gradient(mean, batch), gradient(learned, batch), atol=1e-3)


def test_the_mean_baseline_has_no_value_network():
    algorithm = make(VPG, FLAT, baseline="mean")
    assert algorithm.network.value_head is None
    policy = sum(
        p.numel()
        for part in (algorithm.network.policy_trunk, algorithm.network.head)
        for p in part.parameters()
    )
    assert sum(p.numel() for p in algorithm.network.parameters()) == policy
    batch = a_batch(algorithm, 3, 4)
    assert "value_loss" not in algorithm.loss(batch, algorithm.statistics(batch)).metrics


def test_the_learned_baseline_is_pulled_to_the_return():
    algorithm = make(VPG, FLAT, value_coef=2.0)
    batch = a_batch(algorithm, 3, 4)
    value = algorithm.network.value(batch.steps.obs)
    rows = batch.steps.mask > 0
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    error = 0.5 * (value - batch.steps.extra["return"]).square()[rows].mean()
    torch.testing.assert_close(loss.metrics["value_loss"], error.detach())
    loss.total.backward()
    slope = 2.0 * (value - batch.steps.extra["return"])[rows].mean()
    torch.testing.assert_close(algorithm.network.value_head.bias.grad[0], slope.detach())


def test_normalised_advantages_have_mean_0_and_deviation_1():
    scaled = make(VPG, FLAT, value_coef=0.0)
    plain = make(VPG, FLAT, value_coef=0.0, normalize_advantage=False)
    batch = a_batch(scaled, 3, 4)
    a = batch.steps.extra["advantage"]
    kept = a[batch.steps.mask > 0]
    by_hand = with_extra(batch, advantage=(a - kept.mean()) / kept.std(correction=0))
    torch.testing.assert_close(gradient(scaled, batch), gradient(plain, by_hand))


def prepared(paid, ending="terminated", **settings):
    """One episode that pays `paid`, as prepared by VPG."""
    env = Lanes([[(len(paid), ending)]], pay=lambda lane, t, action: paid[t])
    algorithm = make(VPG, env, episodes=1, gamma=0.5, **settings)
    segment = Loop(algorithm, env).actor.collect()
    assert len(segment.steps.mask) == len(paid)
    return algorithm, segment, algorithm.prepare(segment).steps


def test_returns_are_discounted_rewards_to_go():
    _, _, steps = prepared([1, 2, 4])
    assert steps.extra["return"].flatten().tolist() == [3, 4, 4]


def test_a_point_ends_the_return():
    _, _, steps = prepared([0, 1, 0, 0, -1], point_ends_return=True)
    assert steps.extra["return"].flatten().tolist() == [0.5, 1, -0.25, -0.5, -1]
    _, _, steps = prepared([0, 1, 0, 0, -1])
    assert steps.extra["return"].flatten().tolist() == [0.4375, 0.875, -0.25, -0.5, -1]


def test_truncation_bootstraps_from_the_learned_value_and_not_from_a_mean():
    algorithm, segment, steps = prepared([1, 2], "truncated")
    last = algorithm.network.value(segment.next_obs).item()
    expected = torch.tensor([[1 + 1 + 0.25 * last], [2 + 0.5 * last]])
    torch.testing.assert_close(steps.extra["return"], expected)
    value = algorithm.network.value(steps.obs)
    torch.testing.assert_close(steps.extra["advantage"], (expected - value).detach())
    _, _, steps = prepared([1, 2], "truncated", baseline="mean")
    assert steps.extra["return"].flatten().tolist() == [2, 2]
    assert steps.extra["advantage"].flatten().tolist() == [2, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"episodes": 4, "rollout_steps": 16},
        {"episodes": None, "rollout_steps": None},
        {"rollout_steps": 16},
    ],
    ids=str,
)
def test_episodes_and_rollout_steps_exclude_each_other(settings):
    with pytest.raises(BadInput, match=r"algo\.episodes and algo\.rollout_steps"):
        VPGConfig(**settings)


def test_the_mean_baseline_needs_whole_episodes():
    with pytest.raises(BadInput, match=r"algo\.baseline=mean .*algo\.rollout_steps=16"):
        VPGConfig(episodes=None, rollout_steps=16, baseline="mean")
    with pytest.raises(BadInput, match=r"algo\.rollout_steps must be at least 1, got 0"):
        VPGConfig(episodes=None, rollout_steps=0)


def test_a_rollout_cut_by_steps_is_bootstrapped():
    env = Lanes([[(100, "terminated")]])
    algorithm = make(VPG, env, episodes=None, rollout_steps=3, gamma=0.5)
    segment = Loop(algorithm, env).actor.collect()
    last = algorithm.network.value(segment.next_obs).item()
    expected = torch.tensor([[1.75 + last / 8], [1.5 + last / 4], [1 + last / 2]])
    torch.testing.assert_close(algorithm.prepare(segment).steps.extra["return"], expected)


def test_fewer_episodes_than_recurrent_lanes_do_no_harm():
    env = Lanes([[(3, "terminated")]] * 6)
    net = NetConfig(hidden=(8,), core="gru", core_size=4)
    algorithm = make(VPG, env, net, episodes=1, minibatches=3)
    loop = Loop(algorithm, env).run(2)
    assert all(math.isfinite(value) for value in loop.learner.take_metrics().values())


def test_more_minibatches_than_recurrent_lanes_are_refused():
    algorithm = make(VPG, FLAT, NetConfig(core="gru"), minibatches=3)
    with pytest.raises(BadInput, match=r"algo\.minibatches=3 is more than the 2 environments"):
        algorithm.memory(2, 1, 0)
