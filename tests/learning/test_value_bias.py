"""Predicted values against discounted returns: hand-worked, by brute force, on every scale."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scenes import CPU, Lanes, make, shaken, spaces_of

from rookery.algorithms.base import Spaces
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.algorithms.vpg import VPG
from rookery.envs.wrappers.episodes import ClipReward, EpisodeStatistics
from rookery.envs.wrappers.normalize import NormalizeReward
from rookery.learning.evaluate import evaluate
from rookery.learning.policy import Policy, RandomPolicy
from rookery.learning.value_bias import ValueBias
from rookery.memory.returns import rescale
from rookery.networks.build import NetConfig
from rookery.networks.q import expected_value


class Stub(RandomPolicy):
    """Predicts ten times the observation."""

    asked = 0

    def values(self, obs, reward, state):
        self.asked += 1
        return 10 * obs[:, 0]


def told_time(lane, episode, t):
    return [t]


def rising(lane, t, action):
    return t + 1


def bias_on(env, episodes, gamma=0.5):
    policy = Stub(spaces_of(env))
    bias = ValueBias(policy, gamma)
    evaluate(policy, env, episodes, 0, bias)
    return bias


def test_means_by_hand():
    # Rewards 1, 2 and 1, 2, 3: returns 2, 2 and 1 + 1 + 3/4, 2 + 3/2, 3; values 0, 10 (, 20).
    env = EpisodeStatistics(Lanes([[(2, "terminated"), (3, "both")]], told_time, rising))
    bias = bias_on(env, 2)
    assert bias.count == 5
    columns = bias.columns()
    assert columns["value_mean"] == 40 / 5
    assert columns["discounted_return_mean"] == (2 + 2 + 2.75 + 3.5 + 3) / 5
    assert columns["value_bias"] == pytest.approx(8 - 13.25 / 5)


def test_truncated_episodes_do_not_count():
    env = EpisodeStatistics(
        Lanes([[(2, "terminated"), (9, "truncated")], [(4, "truncated")]], told_time, rising)
    )
    bias = bias_on(env, 4)
    assert bias.count == 2
    assert bias.columns() == {
        "value_mean": 5.0, "discounted_return_mean": 2.0, "value_bias": 3.0
    }  # fmt: skip
    env = EpisodeStatistics(Lanes([[(4, "truncated")]], told_time, rising))
    assert bias_on(env, 3).columns() == {}


@pytest.mark.parametrize("seed", range(5))
def test_several_lanes_against_brute_force(seed):
    random = np.random.default_rng(seed)
    kinds = ["terminated", "truncated", "both"]
    lanes = [
        [(int(random.integers(1, 9)), kinds[random.integers(3)]) for _ in range(6)]
        for _ in range(4)
    ]
    pay = random.normal(size=(4, 10))
    env = EpisodeStatistics(Lanes(lanes, told_time, lambda lane, t, action: pay[lane, t]))
    bias = bias_on(env, 10, gamma=0.9)
    values, returns = [], []
    for lane, share in enumerate([3, 3, 2, 2]):
        for length, ending in lanes[lane][:share]:
            if ending == "truncated":
                continue
            for t in range(length):
                values.append(10 * t)
                returns.append(sum(0.9 ** (k - t) * pay[lane, k] for k in range(t, length)))
    assert bias.count == len(values) > 0
    columns = bias.columns()
    assert columns["value_mean"] == pytest.approx(np.mean(values))
    assert columns["discounted_return_mean"] == pytest.approx(np.mean(returns))
    assert columns["value_bias"] == pytest.approx(np.mean(values) - np.mean(returns))


def test_rewards_are_those_that_the_learner_sees():
    def lanes():
        return EpisodeStatistics(
            Lanes([[(2, "terminated")]], told_time, lambda lane, t, action: 60.0)
        )

    assert bias_on(ClipReward(lanes()), 1).columns()["discounted_return_mean"] == (1.5 + 1) / 2
    normalised = NormalizeReward(lanes(), 0.5, frozen=True)
    normalised.moments.update(np.array([-20.0, 20.0]))  # deviation 20
    found = bias_on(normalised, 1).columns()["discounted_return_mean"]
    assert found == pytest.approx(3 * 1.25)


def fed(bias, rows):
    """Feed one lane with rows (reward, lives, ending) and the values 0, 10, 20, ..."""
    bias.begin(1, {"lives": np.array([3])})
    played = True
    for t, (reward, lives, ending) in enumerate(rows):
        bias.predict(np.array([[float(t)]]), np.zeros(1), ())
        terminated, truncated = (
            np.array([ending == "terminated"]),
            np.array([ending == "truncated"]),
        )
        info = {"lives": np.array([lives])}
        bias.add(np.array([played]), np.array([reward]), terminated, truncated, info)
        played = not ending
    return bias


SPACES = Spaces(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))
GAME = [(1, 3, ""), (1, 2, ""), (1, 2, ""), (1, 1, ""), (1, 0, ""), (1, 0, "terminated")]


def test_a_lost_life_ends_the_return_where_it_ends_the_learners_episode():
    whole = fed(ValueBias(Stub(SPACES), 1.0), GAME)
    assert (whole.count, whole.return_sum) == (6, 6 + 5 + 4 + 3 + 2 + 1)
    # Three episodes of two steps: the last life is lost one row before the game's end.
    cut = fed(ValueBias(Stub(SPACES), 1.0, lives_end=True), GAME)
    assert (cut.count, cut.return_sum) == (6, 3 * (2 + 1))
    assert cut.value_sum == whole.value_sum == 150
    # A time limit ends the game: the lives lost before it are known, the rest is not.
    limited = [*GAME[:4], (1, 1, ""), (1, 1, "truncated")]
    cut = fed(ValueBias(Stub(SPACES), 1.0, lives_end=True), limited)
    assert (cut.count, cut.return_sum, cut.value_sum) == (4, 2 * (2 + 1), 60)


def test_a_reward_ends_the_return_where_points_do():
    rows = [(0, 3, ""), (1, 3, ""), (0, 3, ""), (-1, 3, ""), (0, 3, "truncated")]
    bias = fed(ValueBias(Stub(SPACES), 0.5, rewards_end=True), rows)
    assert (bias.count, bias.return_sum) == (4, 0.5 + 1 - 0.5 - 1)


def test_an_unreachable_server_cuts_the_episode():
    bias = ValueBias(Stub(SPACES), 1.0)
    bias.begin(1, {})
    yes, no = np.array([True]), np.array([False])
    for lost, terminated in [(no, no), (yes, no), (no, no), (no, yes)]:
        bias.predict(np.zeros((1, 1)), np.zeros(1), ())
        bias.add(yes, np.ones(1), terminated, lost, {"lost": lost})
    assert (bias.count, bias.return_sum) == (2, 3)


# ---------------------------------------------------------------- values of policies

OBS = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
FOUR = Spaces(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))
NONE = np.zeros(5)


def policy_of(kind, where=FOUR, net=None, **settings):
    algorithm = make(kind, where, net, **settings)
    shaken(algorithm.network)
    return Policy(algorithm, where, CPU)


def test_values_of_an_actor_critic_with_one_network_or_two():
    for shared in (True, False):
        policy = policy_of(PPO, net=NetConfig(hidden=(8,), shared=shared))
        network = policy.algorithm.network
        expected = network(torch.tensor(OBS), ())[1]
        np.testing.assert_allclose(policy.values(OBS, NONE, ()), expected.detach(), atol=1e-6)
        assert np.std(expected.detach().numpy()) > 0.01


def test_a_mean_baseline_predicts_nothing_and_is_asked_once():
    env = EpisodeStatistics(Lanes([[(3, "terminated")]]))
    algorithm = make(VPG, env, baseline="mean")
    policy = Policy(algorithm, spaces_of(env), CPU)
    assert policy.values(np.ones((5, 1), np.float32), NONE, ()) is None
    asked = []
    ask = policy.values
    policy.values = lambda *given: asked.append(given) or ask(*given)
    bias = ValueBias(policy, 0.9)
    evaluate(policy, env, 2, 0, bias)
    assert len(asked) == 1
    assert bias.columns() == {}


def test_values_of_atoms_are_expectations():
    policy = policy_of(DQN, atoms=11, value_min=-3.0, value_max=8.0)
    algorithm = policy.algorithm
    expected = expected_value(algorithm.network(torch.tensor(OBS)), algorithm.atoms).amax(-1)
    np.testing.assert_allclose(policy.values(OBS, NONE, ()), expected.detach(), atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
def test_values_of_r2d2_are_on_the_scale_of_returns(scaled):
    core = NetConfig(hidden=(8,), core="lstm", core_size=4)
    policy = policy_of(R2D2, net=core, rescale=scaled)
    returns = torch.tensor([[-3.0, 500.0, 20.0, 7.0]] * 5)
    learned = rescale(returns) if scaled else returns
    policy.algorithm.q_values = lambda obs, reward, state: (learned, state[:-1])
    values = policy.values(OBS, NONE, policy.begin(5))
    np.testing.assert_allclose(values, 500.0, rtol=1e-5)


def test_illegal_actions_have_no_value():
    where = Spaces(spaces.Dict({"x": FOUR.obs, "action_mask": spaces.MultiBinary(4)}), FOUR.action)
    policy = policy_of(DQN, where)
    mask = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], np.int8)
    obs = {"x": OBS, "action_mask": mask}
    q = policy.algorithm.network({k: torch.tensor(v) for k, v in obs.items()}).detach().numpy()
    expected = [max(row[legal == 1]) for row, legal in zip(q, mask, strict=True)]
    np.testing.assert_allclose(policy.values(obs, NONE, ()), expected, atol=1e-6)


def test_values_of_a_greedy_policy_have_no_noise():
    policy = policy_of(DQN, noisy=True)
    network = policy.algorithm.network
    generator = torch.Generator().manual_seed(0)
    policy.algorithm.act(torch.tensor(OBS), torch.zeros(5), (), generator, torch.ones(5))
    noisy = network(torch.tensor(OBS)).amax(-1).detach()
    policy.decide(OBS, NONE, ())
    quiet = network(torch.tensor(OBS)).amax(-1).detach()
    assert not torch.allclose(noisy, quiet)
    np.testing.assert_allclose(policy.values(OBS, NONE, ()), quiet, atol=1e-6)
