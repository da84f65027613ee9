"""PPO's pieces by hand, and its first and last updates."""

from itertools import pairwise

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, a_batch, make, ppo, shaken

from rookery.algorithms.base import Spaces
from rookery.algorithms.ppo import PPO, clipped_objective, value_error
from rookery.errors import BadInput
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.memory.returns import gae
from rookery.networks.build import NetConfig
from rookery.networks.recurrent import resets


def test_clipped_objective_by_hand():
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, 1.0, 1.0, -1.0, -1.0, 3.0])
    # Good actions gain up to 1.2; bad ones lose in full above 1, and down to 0.8 below.
    expected = torch.tensor([2.0, 1.2, 0.5, -1.5, -0.8, 3.3])
    torch.testing.assert_close(clipped_objective(ratio, advantage, 0.2), expected)


def test_clipped_actions_pull_no_more():
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    clipped_objective(log_ratio.exp(), advantage, 0.2).sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, 0.5, -1.5, 0.0]))


def test_value_error_by_hand():
    value, old, target = torch.tensor([3.0, 3.0, 1.1]), torch.ones(3), torch.tensor([4.0, 0.0, 2.0])
    torch.testing.assert_close(
        value_error(value, old, target, None), torch.tensor([0.5, 4.5, 0.405])
    )
    # Clipped to 1.5: (1.5-4)^2 = 6.25 is worse than 1; (1.5-0)^2 = 2.25 is better than 9.
    expected = torch.tensor([3.125, 4.5, 0.405])
    torch.testing.assert_close(value_error(value, old, target, 0.5), expected)


def test_a_clipped_value_is_not_pulled_further():
    value = torch.tensor([3.0, 1.1], requires_grad=True)
    value_error(value, torch.ones(2), torch.tensor([4.0, 2.0]), 0.5).sum().backward()
    torch.testing.assert_close(value.grad, torch.tensor([0.0, -0.9]))


def test_loss_is_the_sum_of_its_parts_by_hand():
    algorithm = ppo(value_coef=0.7, entropy_coef=0.3, normalize_advantage=False)
    batch = a_batch(algorithm, 4, 5)
    steps, extra = batch.steps, batch.steps.extra
    rows = steps.mask > 0
    params, value = algorithm.network(steps.obs, ())
    policy = torch.distributions.Categorical(logits=params)
    ratio = (policy.log_prob(steps.action) - extra["log_prob"]).exp()
    a = extra["advantage"]
    gain = torch.min(ratio * a, ratio.clip(0.8, 1.2) * a)[rows].mean()
    error = 0.5 * (value - extra["value"] - a).square()[rows].mean()
    entropy = policy.entropy()[rows].mean()
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    torch.testing.assert_close(loss.total, 0.7 * error - gain - 0.3 * entropy)
    expected = {
        "policy_loss": -gain,
        "value_loss": error,
        "entropy": entropy,
        "kl": (ratio - 1 - ratio.log())[rows].mean(),
        "clip_fraction": ((ratio - 1).abs() > 0.2).float()[rows].mean(),
    }
    assert expected["clip_fraction"] > 0
    for name, metric in expected.items():
        torch.testing.assert_close(loss.metrics[name], metric)


def test_advantages_are_normalised_over_the_unmasked_rows():
    def raw(batch, advantage):
        extra = batch.steps.extra | {"advantage": advantage}
        return batch._replace(steps=batch.steps._replace(extra=extra))

    plain = ppo(normalize_advantage=False, value_coef=0.0)
    scaled = ppo(normalize_advantage=True, value_coef=0.0)
    batch = a_batch(plain, 4, 5)
    a = batch.steps.extra["advantage"]
    kept = a[batch.steps.mask > 0]
    by_hand = raw(batch, (a - kept.mean()) / kept.std(correction=0))
    expected = plain.loss(by_hand, plain.statistics(by_hand)).total
    torch.testing.assert_close(scaled.loss(batch, scaled.statistics(batch)).total, expected)


def test_prepare_records_log_probs_values_and_advantages():
    env = Lanes([[(3, "truncated")], [(2, "terminated"), (4, "truncated")]])
    algorithm = make(PPO, env, rollout_steps=11, gamma=0.9, lam=0.8)
    segment = Loop(algorithm, env).actor.collect()
    steps = algorithm.prepare(segment).steps
    value = algorithm.network.value(torch.cat([steps.obs, segment.next_obs.unsqueeze(0)])).detach()
    log_prob = torch.full((11, 2), -np.log(2), dtype=torch.float32)  # uniform at first
    torch.testing.assert_close(steps.extra["log_prob"], log_prob)
    torch.testing.assert_close(steps.extra["value"], value[:-1])
    expected = gae(steps.reward, steps.discount, steps.mask, value, 0.9, 0.8)
    torch.testing.assert_close(steps.extra["advantage"], expected)
    assert not any(x.requires_grad for x in steps.extra.values())


BOX = spaces.Box(-2, 2, (2,), np.float32)


@pytest.mark.parametrize("action", [spaces.Discrete(3), BOX, spaces.MultiDiscrete([2, 3])], ids=str)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_first_minibatch_finds_the_policy_where_the_rollout_left_it(action, core):
    env = Lanes([[(3, "truncated")], [(5, "terminated")]], action_space=action)
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    algorithm = make(PPO, env, net, rollout_steps=12, minibatches=2)
    torch.nn.init.normal_(algorithm.network.head.linear.weight)
    loop = Loop(algorithm, env)
    segment = loop.actor.collect()
    loop.memory.add(algorithm.prepare(segment))
    batch = next(loop.memory.batches())
    metrics = algorithm.loss(batch, algorithm.statistics(batch)).metrics
    assert abs(metrics["kl"].item()) < 1e-6
    assert metrics["clip_fraction"].item() == 0


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_loss_is_that_of_every_row_by_itself(core):
    env = Lanes([[(3, "truncated")], [(5, "terminated")], [(4, "both")]])
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    settings = {"rollout_steps": 12, "minibatches": 1, "entropy_coef": 0.1, "value_clip": 0.3}
    algorithm = make(PPO, env, net, **settings)
    loop = Loop(algorithm, env)
    loop.memory.add(algorithm.prepare(loop.actor.collect()))
    batch = next(loop.memory.batches())
    shaken(algorithm.network)
    steps, head, config = batch.steps, algorithm.network.head, algorithm.config
    reset = resets(steps.mask) if core != "none" else None
    params, value = algorithm.network(steps.obs, batch.state, reset)
    played = steps.mask.nonzero().tolist()
    old = torch.stack([steps.extra["advantage"][t, b] for t, b in played]).double()
    total = 0.0
    for t, b in played:
        log_prob = head.log_prob(params[t, b], steps.action[t, b])
        ratio = (log_prob - steps.extra["log_prob"][t, b]).exp()
        advantage = steps.extra["advantage"][t, b]
        standard = (advantage - old.mean()) / (old.std(correction=0) + 1e-8)
        gain = clipped_objective(ratio, standard, config.clip)
        before = steps.extra["value"][t, b]
        error = value_error(value[t, b], before, before + advantage, config.value_clip)
        total += config.value_coef * error - gain - config.entropy_coef * head.entropy(params[t, b])
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    torch.testing.assert_close(loss.total, (total / len(played)).float(), rtol=1e-4, atol=1e-5)


def test_the_policy_moves_after_the_first_update():
    env = Lanes([[(3, "truncated")]] * 2, pay=lambda lane, t, action: float(action))
    algorithm = make(PPO, env, learning_rate=0.05, rollout_steps=16)
    loop = Loop(algorithm, env).run(1)
    assert loop.learner.updates == 16
    assert loop.learner.take_metrics()["kl"] > 1e-4


def test_the_kl_stop_leaves_the_parameters_unchanged():
    stopping, going = ppo(max_kl=1e-3), ppo(max_kl=1e3)
    for algorithm, expected in ((stopping, True), (going, False)):
        learner = Learner(algorithm, LearnerConfig(), Reducer(), CPU)
        before = learner.flat.values.detach().clone()
        outcome = learner.update(a_batch(algorithm, 4, 5))  # kl about 0.05
        assert outcome.stop is expected
        assert torch.equal(learner.flat.values, before) is expected
        assert learner.updates == (0 if expected else 1)


def test_the_kl_stop_ends_the_rollout():
    env = Lanes([[(3, "truncated")]] * 2, pay=lambda lane, t, action: float(action))
    settings = {"learning_rate": 0.05, "rollout_steps": 16, "epochs": 50, "max_kl": 0.01}
    loop = Loop(make(PPO, env, **settings), env).run(1)
    assert 0 < loop.learner.updates < 200
    loop.run(1)  # and the next rollout is learned from


def test_the_entropy_bonus_raises_the_entropy():
    algorithm = ppo(entropy_coef=1.0, value_coef=0.0, learning_rate=0.3)
    torch.nn.init.normal_(algorithm.network.head.linear.weight, std=2)
    batch = a_batch(algorithm, 4, 5)
    zero = batch.steps.extra | {"advantage": torch.zeros(4, 5)}
    batch = batch._replace(steps=batch.steps._replace(extra=zero))
    learner = Learner(algorithm, LearnerConfig(), Reducer(), CPU)
    entropy = []
    for _ in range(10):
        learner.update(batch)
        entropy.append(learner.take_metrics()["entropy"])
    assert all(b > a for a, b in pairwise(entropy))
    assert entropy[-1] > entropy[0] + 0.1


def test_value_clip_holds_the_value_back():
    def value_change(clip):
        algorithm = ppo(value_clip=clip, normalize_advantage=False, learning_rate=0.05)
        batch = a_batch(algorithm, 4, 5, masked=0)
        with torch.no_grad():
            old = algorithm.network.value(batch.steps.obs)
        extra = batch.steps.extra | {"value": old, "advantage": torch.full((4, 5), 10.0)}
        batch = batch._replace(steps=batch.steps._replace(extra=extra))
        learner = Learner(algorithm, LearnerConfig(), Reducer(), CPU)
        for _ in range(40):
            learner.update(batch)
        return float((algorithm.network.value(batch.steps.obs) - old).detach().mean())

    assert value_change(None) > 5
    assert value_change(0.1) < 3


def test_more_minibatches_than_rows_are_refused():
    with pytest.raises(BadInput, match=r"algo\.minibatches=9 is more than the 8 rows"):
        make(PPO, FLAT, rollout_steps=4, minibatches=9).memory(2, 1, 0)
    recurrent = make(PPO, FLAT, NetConfig(core="gru"), rollout_steps=4, minibatches=3)
    with pytest.raises(BadInput, match=r"algo\.minibatches=3 is more than the 2 environments"):
        recurrent.memory(2, 1, 0)


def test_greedy_takes_the_mode():
    algorithm = make(PPO, Spaces(FLAT.obs, spaces.Discrete(4, start=1)))
    algorithm.network.head.linear.bias.data = torch.tensor([0.0, 0.1, 0.3, 0.2])
    obs, reward = torch.randn(50, 3), torch.zeros(50)
    decision = algorithm.act(obs, reward, (), torch.Generator().manual_seed(0), None)
    assert decision.action.unique().tolist() == [2]
    assert decision.env_action.unique().tolist() == [3]
    sampling = torch.ones(50)
    decision = algorithm.act(obs, reward, (), torch.Generator().manual_seed(0), sampling)
    assert len(decision.action.unique()) == 4
