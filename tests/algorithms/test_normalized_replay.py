"""A replay memory behind normalisation: rows are stored raw and scaled when they are drawn, so
that every one is on the scale of the present."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import Lanes, Loop, Spy, every_window, filled, make

from rookery.algorithms.apex import ApeX
from rookery.algorithms.dqn import DQN
from rookery.algorithms.r2d2 import R2D2
from rookery.backends.factory import spaces_of
from rookery.data.tree import tree_map
from rookery.envs.wrappers.normalize import NormalizeObservation, NormalizeReward
from rookery.envs.wrappers.observations import FrameStack
from rookery.networks.build import NetConfig

KINDS = [DQN, ApeX, R2D2]
MIXED = [[(3, "terminated"), (5, "truncated")], [(9, "truncated")], [(4, "both")]]
GAMMA = 0.9
SMALL = {"capacity": 4_000, "warm_up": 0, "batch_size": 16, "gamma": GAMMA, "alpha": 1.0}
SHORT = {"burn_in": 2, "unroll": 4, "n_step": 2, "rescale": False}


def raw_obs(lane, episode, t):
    """Observations whose scale grows from episode to episode."""
    return (1 + episode) * np.array([10 + np.sin(lane + t), 3 * np.cos(2 * lane + t)])


def raw_reward(lane, t, action):
    return 5.0 * (1 + lane) * np.cos(t + action)


class Seen(Lanes):
    """Notes what it hands out, row by row: observations before the step, rewards after it."""

    def __init__(self, dtype=np.float64):
        box = spaces.Box(-np.inf, np.inf, (2,), dtype)
        super().__init__(MIXED, raw_obs, raw_reward, box, spaces.Discrete(3))
        self.observed, self.paid = [], []

    def step(self, actions):
        self.observed.append(self.obs.copy())
        was_done = self.terminated | self.truncated
        result = super().step(actions)
        self.paid.append(np.where(was_done, 0, self.reward))
        return result


def wrapped(frames=1, reward=True):
    env = Seen()
    normalised = NormalizeReward(env, 0.9) if reward else env
    normalised = NormalizeObservation(normalised)
    return env, (FrameStack(normalised, frames) if frames > 1 else normalised)


def an_agent(kind, env, **settings):
    net = NetConfig(hidden=(8,), core="lstm" if kind is R2D2 else "none", core_size=6)
    more = SHORT if kind is R2D2 else {"n_step": 2}
    return make(kind, spaces_of(env), net, **(SMALL | more | settings))


def scaled_obs(env, rows):
    moments = env.env.moments[()] if isinstance(env, FrameStack) else env.moments[()]
    return np.clip((rows - moments.mean) / np.sqrt(moments.var + 1e-8), -10, 10).astype(np.float32)


def reward_moments(env):
    while not isinstance(env, NormalizeReward):
        env = env.env
    return env.moments


def scaled_reward(env, rows):
    return np.clip(rows / np.sqrt(reward_moments(env).var + 1e-8), -10, 10).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_on_the_scale_of_the_day_they_are_drawn(kind):
    inner, env = wrapped()
    memory, _ = filled(an_agent(kind, env), env, rounds=40)
    observed, paid = np.array(inner.observed), np.array(inner.paid)
    found = every_window(memory)
    obs, reward = found.batch.steps.obs.numpy(), found.batch.steps.reward.numpy()
    assert len(found.row) > 9
    spread = []
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        np.testing.assert_array_equal(obs[0, i], scaled_obs(env, observed[row, lane]))
        first = scaled_reward(env, paid[row, lane])
        if kind is R2D2:
            assert reward[0, i] == pytest.approx(first, abs=1e-6)
        else:
            mask = memory.ring.mask[memory.ring.places(lane, row + 1)]
            ends = memory.ring.discount[memory.ring.places(lane, row)] == 0 or mask == 0
            second = 0.0 if ends else GAMMA * scaled_reward(env, paid[row + 1, lane])
            assert reward[0, i] == pytest.approx(first + second, abs=1e-5)
        spread.append(observed[row, lane, 0])
    # Rows as they were scaled on their day would be off by far: the observations grow.
    assert max(spread) > 4 * min(spread)


def test_the_reward_before_a_sequence_is_on_the_scale_of_the_others():
    inner, env = wrapped()
    memory, _ = filled(an_agent(R2D2, env), env, rounds=40)
    paid = np.array(inner.paid)
    found = every_window(memory)
    checked = 0
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        before = scaled_reward(env, paid[row - 1, lane]) if row else 0.0
        assert found.batch.state[-1][i, 0].item() == pytest.approx(float(before), abs=1e-6)
        checked += bool(before)
        later = int(row) + memory.windows.later
        expected = scaled_reward(env, paid[later - 1, lane])
        given = found.batch.steps.extra["later_state"][-1][0, i, 0].item()
        assert given == pytest.approx(float(expected), abs=1e-6)
    assert checked > 3


@pytest.mark.parametrize("kind", KINDS)
def test_first_priorities_are_errors_on_that_scale(kind):
    """A window's first priority uses the statistics of the moment it is complete."""
    inner, env = wrapped()
    agent = an_agent(kind, env)
    loop = Loop(agent, env)
    told = {}

    def spied(columns, starts, inner=loop.memory.first_priorities):
        told["reward"] = columns.reward
        return inner(columns, starts)

    loop.memory.first_priorities = spied
    for _ in range(30):
        loop.memory.add(agent.prepare(loop.actor.collect()))
        if not told:
            continue
        rows = np.array(inner.paid)[-len(told["reward"]) :]
        np.testing.assert_allclose(told["reward"], scaled_reward(env, rows), atol=1e-6)
        told.clear()


@pytest.mark.parametrize("kind", [DQN, R2D2])
def test_frames_before_an_episodes_start_stay_zero(kind):
    inner, env = wrapped(frames=3)
    memory, _ = filled(an_agent(kind, env), env, rounds=40)
    observed = np.array(inner.observed)
    found = every_window(memory)
    obs = found.batch.steps.obs.numpy()
    padded = 0
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        playing = True
        for back in range(3):
            if back:
                places = memory.ring.places(lane, row - back)
                playing = playing and row >= back and memory.ring.mask[places] > 0
            expected = scaled_obs(env, observed[row - back, lane]) if playing else np.zeros(2)
            np.testing.assert_array_equal(obs[0, i, 2 - back], expected)
            padded += not playing
    assert padded > 3


def test_the_actor_sees_the_scaled_observation_and_reward():
    inner, env = wrapped()
    agent = an_agent(R2D2, env)
    spy = Spy(agent)
    Loop(agent, env).actor.collect()
    later = np.stack([np.asarray(row[1]) for row in spy.rows[1:]])
    assert np.abs(later).max() > 0
    assert not np.allclose(later[0], inner.paid[0])
    seen = np.stack([np.asarray(row[0]) for row in spy.rows])
    assert np.abs(seen).max() <= 10


def test_observations_are_stored_in_their_own_precision():
    inner, env = wrapped()
    memory, _ = filled(an_agent(DQN, env), env, rounds=10)
    assert memory.ring.obs.dtype == torch.float64
    np.testing.assert_array_equal(memory.ring.obs[0].numpy(), inner.observed[0][0])


def test_only_scaled_parts_of_a_nested_observation_are_raw():
    class Parts(Lanes):
        """Numbers beside a code, in a Dict."""

        def __init__(self):
            super().__init__(MIXED, raw_obs, raw_reward, spaces.Box(-np.inf, np.inf, (2,)))
            self.single_observation_space = spaces.Dict(
                {"code": spaces.Discrete(5), "numbers": spaces.Box(-np.inf, np.inf, (2,))}
            )

        def nested(self):
            return {"code": self.t % 5, "numbers": self.obs}

        def reset(self, *, seed=None, options=None):
            _, info = super().reset(seed=seed, options=options)
            return self.nested(), info

        def step(self, actions):
            _, *rest = super().step(actions)
            return self.nested(), *rest

    env = NormalizeObservation(Parts())
    memory, _ = filled(an_agent(DQN, env), env, rounds=20)
    found = every_window(memory)
    obs = tree_map(lambda x: x[0].numpy(), found.batch.steps.obs)
    places = memory.ring.places(found.lane, found.row)
    raw = memory.ring.obs["numbers"][places].numpy()
    moments = env.moments[("numbers",)]
    expected = np.clip((raw - moments.mean) / np.sqrt(moments.var + 1e-8), -10, 10)
    np.testing.assert_allclose(obs["numbers"], expected, rtol=1e-6)
    assert set(np.unique(obs["code"])) <= set(range(5))
    assert raw.max() > 10


def test_without_normalisation_rows_are_stored_as_they_are():
    env = Seen()
    agent = an_agent(DQN, env)
    assert agent.spaces.normalizer is None
    assert not agent.collection.raw
    memory, _ = filled(agent, env, rounds=10)
    np.testing.assert_array_equal(memory.ring.obs[:3].numpy(), np.array(env.observed)[:3, 0])
