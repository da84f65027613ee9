"""The probe environments: episodes by hand."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rookery.envs import make_env
from rookery.envs.builtin import PROBE_CLASSES, probes

NAMES = [f"rookery/Probe{number}-v0" for number in range(1, 10)]


def play(env, actions, signs=()):
    """Return (observation, reward, terminated, truncated) of every step, after the first
    observation, in an episode whose draws are `signs`."""
    left = list(signs)
    env.draw_sign = lambda: left.pop(0)
    rows = [env.reset()[0].tolist()]
    for action in actions:
        obs, *rest, _ = env.step(action)
        rows.append((obs.tolist(), *rest))
    return rows


def test_every_probe_is_registered():
    assert len(PROBE_CLASSES) == len(NAMES)
    for name, kind in zip(NAMES, PROBE_CLASSES, strict=True):
        assert type(gymnasium.make(name).unwrapped).__name__ == kind


@pytest.mark.parametrize("name", NAMES)
def test_random_play_stays_in_the_spaces_and_repeats_with_a_seed(name):
    streams = []
    for _ in range(2):
        env = make_env(name, num_envs=3)
        env.action_space.seed(0)
        rows = [env.reset(seed=5)[0].tolist()]
        for _ in range(30):
            obs, reward, *ends, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(obs)
            rows.append([obs.tolist(), reward.tolist(), *(end.tolist() for end in ends)])
        env.close()
        streams.append(rows)
    assert streams[0] == streams[1]


def test_constant_pays_one_and_ends():
    assert play(probes.ConstantValue(), [0]) == [[1], ([1], 1, True, False)]


@pytest.mark.parametrize("sign", [-1, 1])
def test_observation_is_what_it_pays(sign):
    assert play(probes.ObservedValue(), [0], [sign]) == [[sign], ([sign], sign, True, False)]


def test_second_step_pays():
    first, second, last = play(probes.DiscountedValue(), [0, 0])
    assert first == [-1]
    assert second == ([1], 0, False, False)
    assert last[1:] == (1, True, False)


def test_fourth_step_pays_the_sign():
    rows = play(probes.DelayedReturn(), [0] * 4, [-1])
    assert rows[0] == [-1, 0, 0, 0]
    assert rows[1] == ([0, -1, 0, 0], 0, False, False)
    assert rows[2] == ([0, 0, -1, 0], 0, False, False)
    assert rows[3] == ([0, 0, 0, -1], 0, False, False)
    assert rows[4][1:] == (-1, True, False)


@pytest.mark.parametrize("action", [0, 1])
def test_action_one_pays(action):
    assert play(probes.BetterAction(), [action])[1][1:] == (action, True, False)


@pytest.mark.parametrize("actions", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("signs", [(-1, -1), (-1, 1), (1, -1), (1, 1)])
def test_two_right_decisions_pay(actions, signs):
    first, second, last = play(probes.TwoDecisions(), actions, [*signs, 1])
    right = [2 * action - 1 == sign for action, sign in zip(actions, signs, strict=True)]
    assert first == [signs[0], 0, 0]
    assert second == ([0, signs[1], right[0]], 0, False, False)
    assert last[1:] == (all(right), True, False)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("action", [0, 1])
def test_sign_must_be_remembered(sign, action):
    first, second, last = play(probes.RememberedSign(), [1, action], [sign])
    assert first == [sign, 0]
    assert second == ([0, 1], 0, False, False)
    assert last[1:] == (2 * action - 1 == sign, True, False)


def test_half_of_the_episodes_are_truncated_before_the_reward():
    assert play(probes.CutEpisode(), [0], [1])[1] == ([0, 1], 0, False, True)
    first, second, last = play(probes.CutEpisode(), [0, 0], [-1])
    assert (first, second) == ([1, 0], ([0, 1], 0, False, False))
    assert last[1:] == (1, True, False)
    env = probes.CutEpisode()
    env.reset(seed=0)
    cut = 0
    for _ in range(400):
        env.reset()
        cut += env.step(0)[3]
    assert 160 < cut < 240


@pytest.mark.parametrize(("action", "reward"), [(-1, 0), (0, 0), (0.25, 0.75), (0.5, 1), (1, 0)])
def test_continuous_action_pays_by_distance(action, reward):
    rows = play(probes.ContinuousAction(), [np.array([action], np.float32)])
    assert rows[1][1:] == (reward, True, False)
