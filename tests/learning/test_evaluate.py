"""Evaluation: exact counts, no favour to short episodes, statistics worked by hand."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scenes import CPU, Lanes, make, shaken

from rookery.algorithms.base import Spaces
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.envs.wrappers.episodes import EpisodeStatistics
from rookery.learning.evaluate import Scores, evaluate
from rookery.learning.policy import Policy, RandomPolicy
from rookery.networks.build import NetConfig


def lanes_of_lengths(*lengths):
    return EpisodeStatistics(Lanes([[(length, "terminated")] for length in lengths]))


def random_policy(env):
    return RandomPolicy(Spaces(env.single_observation_space, env.single_action_space))


@pytest.mark.parametrize("episodes", [1, 3, 4, 7])
def test_the_count_is_exact(episodes):
    env = lanes_of_lengths(2, 3, 5)
    assert len(evaluate(random_policy(env), env, episodes, seed=0).returns) == episodes


def test_long_episodes_count_as_often_as_short_ones():
    # Taking the first six to end would give five of length 2 and one of length 11.
    env = lanes_of_lengths(2, 11)
    scores = evaluate(random_policy(env), env, 6, seed=0)
    assert sorted(scores.lengths.tolist()) == [2, 2, 2, 11, 11, 11]
    assert scores.summary()["return_mean"] == pytest.approx(6.5)


def test_the_summary_has_the_interquartile_mean_and_its_interval():
    returns = np.array([0.0, 1, 2, 100] * 5)
    summary = Scores(returns, np.ones(20)).summary()
    assert summary["return_iqm"] == 1.5
    assert 0 < summary["return_iqm_low"] < 1.5 < summary["return_iqm_high"] < 100


def see_time(lane, episode, t):
    return [t / 5, lane]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_policy_for_one_decides_as_the_batch_does(core):
    box = spaces.Box(-10, 10, (2,), np.float32)
    endings = [[(4, "terminated")], [(6, "truncated")]]
    env = Lanes(endings, see_time, obs_space=box, action_space=spaces.Box(-9, 9, (1,)))
    algorithm = make(PPO, env, NetConfig(hidden=(8,), core=core, core_size=6))
    torch.nn.init.normal_(algorithm.network.head.linear.weight, std=3.0)
    spaces_of = Spaces(env.single_observation_space, env.single_action_space)
    batch, single = (Policy(algorithm, spaces_of, CPU) for _ in range(2))
    obs, _ = env.reset()
    state, resetting, chosen = batch.begin(2), np.zeros(2, bool), []
    for _ in range(20):
        first = obs[1].copy()
        action, state = batch.decide(obs.copy(), np.zeros(2), state)
        one = single(first)
        chosen.append(float(one[0]))
        np.testing.assert_allclose(one, action[1], atol=1e-5)
        obs, _, terminated, truncated, _ = env.step(action)
        if resetting[1]:
            single.reset()
        state = batch.carry(state, resetting)
        resetting = terminated | truncated
    assert np.std(chosen) > 0.05


def test_greedy_takes_the_likeliest_and_sampling_does_not_always():
    env = lanes_of_lengths(3)
    algorithm = make(PPO, env, NetConfig(hidden=(4,)))
    algorithm.network.head.linear.bias.data.copy_(torch.tensor([0.0, 0.5]))
    spaces_of = Spaces(env.single_observation_space, env.single_action_space)
    obs = np.ones((500, 1), np.float32)
    greedy, _ = Policy(algorithm, spaces_of, CPU, greedy=True).decide(obs, np.zeros(500), ())
    sampled, _ = Policy(algorithm, spaces_of, CPU, greedy=False).decide(obs, np.zeros(500), ())
    assert greedy.tolist() == [1] * 500
    assert 0.5 < sampled.mean() < 0.75


def test_a_policy_is_told_the_reward_before_and_none_where_an_episode_starts():
    told = []

    class Listening(RandomPolicy):
        def decide(self, obs, reward, state):
            told.append(reward.tolist())
            return super().decide(obs, reward, state)

    lanes = [[(2, "terminated")], [(3, "truncated")]]
    env = EpisodeStatistics(Lanes(lanes, pay=lambda lane, t, action: 10 * lane + t + 1))
    evaluate(Listening(Spaces(env.single_observation_space, env.single_action_space)), env, 4, 0)
    first, second = zip(*told, strict=True)
    assert list(first[:7]) == [0, 1, 2, 0, 1, 2, 0]
    assert list(second[:7]) == [0, 11, 12, 13, 0, 11, 12]


def test_an_agent_remembers_the_actions_that_epsilon_drew():
    where = Spaces(spaces.Box(-10, 10, (2,), np.float32), spaces.Discrete(5, start=3))
    algorithm = make(R2D2, where, NetConfig(hidden=(8,), core="lstm", core_size=6))
    shaken(algorithm.network)
    batch, single = (Policy(algorithm, where, CPU, epsilon=0.5) for _ in range(2))
    random, state, played, remembered = np.random.default_rng(0), batch.begin(4), [], []
    for _ in range(250):
        obs = random.uniform(-10, 10, (4, 2)).astype(np.float32)
        action, state = batch.decide(obs, np.zeros(4), state)
        played += [*action, single(obs[0])]
        remembered += [*state[-1].argmax(-1), *single.state[-1].argmax(-1)]
    assert set(played) == {3, 4, 5, 6, 7}
    assert [int(action) for action in remembered] == [action - 3 for action in played]


@pytest.mark.parametrize("shown", [True, False])
def test_a_policy_for_one_remembers_as_the_batch_does(shown):
    endings = [[(4, "terminated")], [(6, "truncated")]]
    box = spaces.Box(-10, 10, (2,), np.float32)
    net = NetConfig(hidden=(8,), core="lstm", core_size=6)
    where = Spaces(box, spaces.Discrete(5))
    algorithm = make(R2D2, where, net, inputs=shown)
    shaken(algorithm.network)
    env = Lanes(endings, see_time, obs_space=box, action_space=where.action)
    batch, single = (Policy(algorithm, where, CPU) for _ in range(2))
    obs, _ = env.reset()
    reward, state, resetting = np.zeros(2), batch.begin(2), np.zeros(2, bool)
    for _ in range(20):
        action, state = batch.decide(obs.copy(), reward, state)
        assert single(obs[1].copy(), reward[1]) == action[1]
        for ours, theirs in zip(single.state, state, strict=True):
            torch.testing.assert_close(ours[0], theirs[1], atol=1e-5, rtol=1e-5)
        obs, reward, terminated, truncated, _ = env.step(action)
        if resetting[1]:
            single.reset()
        reward = np.where(resetting, 0.0, reward)
        state = batch.carry(state, resetting)
        resetting = terminated | truncated
