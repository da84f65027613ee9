"""Served environments: the same transitions as local ones, and servers that are lost."""

from __future__ import annotations

import signal
import time

import gymnasium
import numpy as np
import pytest
import torch
from served import Server, serving
from worlds import Mixed, Old

from rookery.algorithms import algorithm_class
from rookery.backends.factory import spaces_of
from rookery.config import default_config
from rookery.data.tree import tree_leaves
from rookery.envs import EnvOptions, make_env, register_env, statistics
from rookery.envs.engines.single import GymnasiumAdapter
from rookery.envs.options import RemoteOptions
from rookery.envs.remote.vector import even_shares
from rookery.envs.wrappers.episodes import EpisodeStatistics
from rookery.errors import BadInput, RunFailed
from rookery.learning.actor import Actor
from rookery.learning.evaluate import evaluate
from rookery.memory.replay import Transitions
from rookery.memory.returns import gae, n_step
from rookery.memory.ring import Layout, Ring


@pytest.fixture(scope="module")
def cartpole():
    with serving("CartPole-v1", "--envs", "8") as server:
        yield server


def local(make, lanes):
    """Copies in Gymnasium's own vector environment, NEXT_STEP."""
    return gymnasium.vector.SyncVectorEnv([make] * lanes)


def assert_same_streams(served, own, steps, seed):
    """Every array of reset and step has the same bytes on both sides."""
    first, second = served.reset(seed=seed)[0], own.reset(seed=seed)[0]
    assert same(first, second)
    own.action_space.seed(seed)
    dones = 0
    for _ in range(steps):
        action = own.action_space.sample()
        rows, others = served.step(action)[:4], own.step(action)[:4]
        assert all(same(a, b) for a, b in zip(rows, others, strict=True))
        dones += int((rows[2] | rows[3]).sum())
    assert dones > 0
    served.close()
    own.close()


def same(first, second):
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_a_served_cartpole_is_the_local_one_bit_for_bit(cartpole):
    own = local(lambda: gymnasium.make("CartPole-v1"), 5)
    assert_same_streams(make_env(cartpole.address, num_envs=5), own, 400, seed=11)


def test_environments_of_two_servers_are_seeded_like_those_of_one(cartpole):
    with serving("CartPole-v1") as second:
        name = f"{cartpole.address},{second.address}"
        own = local(lambda: gymnasium.make("CartPole-v1"), 5)
        assert_same_streams(make_env(name, num_envs=5), own, 200, seed=3)


def test_a_served_lunar_lander_is_the_local_one_bit_for_bit():
    pytest.importorskip("Box2D")
    with serving("LunarLander-v3") as server:
        own = local(lambda: gymnasium.make("LunarLander-v3"), 3)
        assert_same_streams(make_env(server.address, num_envs=3), own, 400, seed=5)


def test_nested_observations_are_the_local_ones_bit_for_bit():
    with serving("worlds:Mixed") as server:
        served = make_env(server.address, num_envs=3)
        assert served.single_observation_space == Mixed.observation_space
        assert served.single_action_space == Mixed.action_space
        assert_same_streams(served, local(Mixed, 3), 60, seed=2)


def test_old_environments_are_the_local_ones_bit_for_bit():
    with serving("worlds:Old", "--kwargs", '{"length": 6}') as server:
        own = local(lambda: GymnasiumAdapter(Old(length=6)), 3)
        assert_same_streams(make_env(server.address, num_envs=3), own, 60, seed=8)


def test_rookery_serve_yields_the_same_atari_as_make_env():
    arguments = ("ALE/Pong-v5", "--env.noops", "0", "--env.sticky", "0", "--envs", "2")
    with serving(*arguments, program="rookery serve") as server:
        served = make_env(server.address, EnvOptions(clip_reward=True), num_envs=2)
        own = make_env("ALE/Pong-v5", EnvOptions(noops=0, sticky=0.0), num_envs=2)
        assert served.single_observation_space == own.single_observation_space
        first, second = served.reset(seed=1)[0], own.reset(seed=1)[0]
        assert same(first, second)
        draw = np.random.default_rng(0)
        for _ in range(60):
            action = draw.integers(6, size=2)
            rows, others = served.step(action)[:4], own.step(action)[:4]
            assert all(same(a, b) for a, b in zip(rows, others, strict=True))
        served.close()
        own.close()


def test_requested_infos_and_images_are_sent():
    with serving("worlds:Old") as server:
        env = make_env(server.address, num_envs=2, render_mode="rgb_array")
        env.reset(seed=0)
        env.step(np.zeros(2, int))
        pictures = env.render()
        assert [picture.tolist() for picture in pictures] == [np.ones((2, 3, 3)).tolist()] * 2
        env.close()
    with serving("worlds:Mixed") as server:
        env = make_env(server.address, EnvOptions(one_life=True), num_envs=2)
        _, info = env.reset(seed=0)
        assert info["lives"].tolist() == [3, 3]
        env.close()


def test_environments_are_distributed_evenly_over_servers():
    assert even_shares(7, 3) == [3, 2, 2]
    assert even_shares(1, 2) == [1, 0]


def test_a_served_environment_has_the_engine_served_and_the_servers_spaces(cartpole):
    env = make_env(cartpole.address)
    assert env.engine == "served"
    assert env.single_action_space == gymnasium.spaces.Discrete(2)
    env.close()


@pytest.mark.parametrize(
    "option",
    [
        {"frame_skip": 4},
        {"resize": (84, 84)},
        {"grey": True},
        {"noops": 3},
        {"sticky": 0.25},
        {"time_limit": 9},
        {"kwargs": {"a": 1}},
    ],
)
def test_options_of_single_environments_must_be_set_on_the_server(cartpole, option):
    with pytest.raises(BadInput, match="give it to the server"):
        make_env(cartpole.address, EnvOptions(**option))


def test_error_messages_name_the_cause(cartpole):
    with pytest.raises(BadInput, match="has no room for 9 more environments: 8 of 8"):
        make_env(cartpole.address, num_envs=9)
    with pytest.raises(BadInput, match="is not an address"):
        make_env("tcp://somewhere")
    with pytest.raises(BadInput, match="twice"):
        make_env(f"{cartpole.address},{cartpole.address}")
    with serving("worlds:Old") as other, pytest.raises(BadInput, match="different spaces"):
        make_env(f"{cartpole.address},{other.address}", num_envs=2)
    with serving("worlds:Failing") as failing:
        env = make_env(failing.address, num_envs=1)
        env.reset(seed=0)
        with pytest.raises(RunFailed, match="the wheel came off"):
            env.step(np.array([1]))
        env.close()


def test_a_client_may_wait_for_room(cartpole):
    holder = make_env(cartpole.address, num_envs=8)
    holder.close()  # the place is free as soon as the session is closed
    options = EnvOptions(remote=RemoteOptions(wait_s=20))
    env = make_env(cartpole.address, options, num_envs=8)
    env.reset(seed=0)
    env.close()


@pytest.mark.long
def test_a_reset_replaces_a_session_that_the_server_has_ended():
    with serving("CartPole-v1", "--silence", "0.2") as server:
        env = make_env(server.address, num_envs=2)
        first, _ = env.reset(seed=4)
        first = first.copy()
        time.sleep(2.5)  # the server looks once a second
        again, info = env.reset(seed=4)
        assert again.tolist() == first.tolist()
        assert "lost" not in info
        env.close()


def play(env, until, most=2_000):
    """Rows of step until one satisfies `until`."""
    rows = []
    for _ in range(most):
        rows.append(env.step(np.zeros(env.num_envs, int)))
        if until(rows[-1]):
            return rows
        if "lost" in rows[-1][4]:
            time.sleep(0.005)
    raise AssertionError("it did not happen")


def test_environments_of_a_killed_server_are_truncated_and_return_with_a_reset(cartpole):
    second = Server("CartPole-v1")
    try:
        env = make_env(f"{cartpole.address},{second.address}", num_envs=4)
        env.reset(seed=0)
        before = env.step(np.zeros(4, int))[0].copy()
        second.kill()
        obs, reward, terminated, truncated, info = env.step(np.zeros(4, int))
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert reward.tolist() == [1, 1, 0, 0]
        assert obs[2:].tolist() == before[2:].tolist()
        assert info["lost"].tolist() == [False, False, True, True]
        assert len(info["notices"]) == 1
        assert second.address in info["notices"][0]
        assert "episode" not in info or not info["episode"]["done"][2:].any()
        away = [env.step(np.zeros(4, int)) for _ in range(5)]
        assert all(row[3][2:].all() and "notices" not in row[4] for row in away)
        assert not any("episode" in r[4] and r[4]["episode"]["done"][2:].any() for r in away)
        second = Server("CartPole-v1", port=second.port)
        rows = play(env, lambda row: "lost" not in row[4])
        obs, reward, terminated, truncated, info = rows[-1]
        assert "is back" in info["notices"][0]
        assert reward[2:].tolist() == [0, 0]  # the reset row
        assert not (terminated | truncated)[2:].any()
        assert (abs(obs[2:]) <= 0.05).all()  # CartPole's first observations
        assert env.step(np.zeros(4, int))[1][2:].tolist() == [1, 1]
        env.close()
    finally:
        second.stop()


def test_a_hanging_server_is_skipped_and_its_old_session_replaced(cartpole):
    with serving("CartPole-v1", "--envs", "2") as second:
        options = EnvOptions(remote=RemoteOptions(timeout_s=0.5))
        env = make_env(f"{cartpole.address},{second.address}", options, num_envs=4)
        env.reset(seed=0)
        second.process.send_signal(signal.SIGSTOP)
        try:
            info = env.step(np.zeros(4, int))[4]
            assert info["lost"].tolist() == [False, False, True, True]
            assert "has not answered for 0.5 s" in info["notices"][0]
        finally:
            second.process.send_signal(signal.SIGCONT)
        # It has room for two, which the session that was given up still holds.
        play(env, lambda row: "lost" not in row[4])
        env.close()


def test_an_error_names_the_servers_when_all_stay_away(capsys):
    with serving("CartPole-v1") as server:
        env = make_env(server.address, EnvOptions(remote=RemoteOptions(away_s=0.3)), num_envs=2)
        env.reset(seed=0)
        server.kill()
        assert env.step(np.zeros(2, int))[3].all()
        with pytest.raises(RunFailed, match=f"no server.*{server.address}"):
            env.step(np.zeros(2, int))
        assert server.address in capsys.readouterr().err
        env.close()


class Away(gymnasium.vector.VectorEnv):
    """Two lanes that count steps of an episode; the second is away in rows 3 to 5."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-100, 100, (2, 1), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed=None, options=None):
        self.row, self.seen = 0, np.zeros((2, 1), np.float32)
        return self.seen.copy(), {}

    def step(self, actions):
        row, self.row = self.row, self.row + 1
        lost = np.array([False, 3 <= row <= 5])
        self.seen[0] += 1
        reward = np.ones(2)
        if row < 3 or row > 6:
            self.seen[1] += 1
        else:
            reward[1] = 0
        if row == 6:
            self.seen[1] = 50  # the reset row: a new episode begins at 50
        info = {"lost": lost} if lost.any() else {}
        return self.seen.copy(), reward, np.zeros(2, bool), lost, info


def played(options, rows=9):
    """What an actor collects of `Away`."""
    register_env("Away", lambda num_envs: Away(), replace=True)
    env = make_env("Away", options, num_envs=2)
    config = default_config("ppo", "Away")
    cpu = torch.device("cpu")
    algorithm = algorithm_class("ppo")(spaces_of(env), config.algo, config.net, cpu)
    collection = algorithm.collection._replace(steps=rows)
    return env, (actor := Actor(env, algorithm, collection, cpu, seed=0)), actor.collect()


def test_lost_rows_are_masked_and_not_counted():
    _, actor, segment = played(EnvOptions())
    steps = segment.steps
    assert steps.mask[:, 0].tolist() == [1] * 9
    # Rows 3 to 5 are lost, row 6 is the reset row. Row 2 ends in the observation of row 3.
    assert steps.mask[:, 1].tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert steps.discount.min() == 1
    assert steps.reward[:, 1].tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert steps.obs[:, 1, 0].tolist() == [0, 1, 2, 3, 3, 3, 3, 50, 51]
    done = actor.take_played()
    assert done.env_steps == 9 + 5
    assert done.episodes == []


def test_normalization_statistics_skip_lost_rows():
    env, _, _ = played(EnvOptions(normalize_obs=True, normalize_reward=True))
    seen = [*range(10), 0, 1, 2, 3, 50, 51, 52]  # both lanes' observations, the reset row's too
    moments = statistics(env)["obs"]
    assert moments.mean[0] == pytest.approx(np.mean(seen))
    assert moments.var[0] == pytest.approx(np.var(seen))
    gamma, returns = 0.99, []
    for length in (9, 3, 2):  # lane 0; lane 1 before and after
        total = 0.0
        for _ in range(length):
            total = gamma * total + 1
            returns.append(total)
    assert statistics(env)["reward"].var == pytest.approx(np.var(returns))


def test_frame_stacks_begin_with_zeros_after_lost_rows():
    _, _, segment = played(EnvOptions(frame_stack=3))
    lane = segment.steps.obs[:, 1, :, 0].tolist()
    assert lane[3] == [1, 2, 3]  # the last that was seen, from which row 2 bootstraps
    assert lane[7] == [0, 0, 50]
    assert lane[8] == [0, 50, 51]


def test_advantages_bootstrap_from_the_last_observation_before_lost_rows():
    steps = played(EnvOptions())[2].steps
    value = torch.arange(10.0)[:, None].expand(10, 2)  # row t is worth t
    advantage = gae(steps.reward, steps.discount, steps.mask, value, gamma=1, lam=1)
    # Lane 1: rows 0 to 2 pay 1 each, then the value 3 of row 3.
    assert advantage[:3, 1].tolist() == [6, 4, 2]
    assert advantage[3:7, 1].tolist() == [0] * 4
    assert advantage[7:, 1].tolist() == [2 + 9 - 7, 1 + 9 - 8]
    sums = n_step(steps.reward, steps.discount, steps.mask, gamma=1.0, n=3)
    assert sums.last[:, 1].tolist() == [3, 2, 1, 0, 0, 0]
    assert sums.reward[:, 1].tolist() == [3, 2, 1, 0, 0, 0]


def test_replay_windows_do_not_cross_lost_rows():
    steps, live = played(EnvOptions())[2].steps, played(EnvOptions(frame_stack=3))[2].steps
    meta = torch.device("meta")
    frame, action = torch.zeros(1, device=meta), torch.zeros((), dtype=torch.int64, device=meta)
    ring = Ring(Layout(frame, action, {}, frames=3), lanes=2, rows=16)
    ring.write(slice(0, 2), 0, steps._replace(extra={}), ())
    real = [0, 1, 2, 3, 7, 8]  # rows that are learnt from, and the one that row 2 ends in
    lane, rows = np.array([1]), np.array(real)[:, None]
    assert torch.equal(ring.take_obs(lane, rows)[:, 0], live.obs[real, 1])
    window, _ = Transitions(n=3, gamma=1.0).assemble(ring, np.array([1, 1]), np.array([1, 2]))
    assert window.reward[0].tolist() == [2, 1]
    assert window.discount[0].tolist() == [1, 1]
    assert window.obs[1, :, -1, 0].tolist() == [3, 3]  # both bootstrap from what was seen last


def test_evaluation_skips_episodes_of_lost_servers():
    class Ending(Away):
        """Episodes of four steps; what is away is no episode."""

        def step(self, actions):
            obs, reward, terminated, truncated, info = super().step(actions)
            self.since = getattr(self, "since", np.zeros(2, int)) + 1
            self.since[truncated] = -1
            terminated = (self.since >= 4) & ~truncated
            self.since[terminated] = -1
            return obs, reward, terminated, truncated, info

    class Still:
        def begin(self, lanes):
            return ()

        def decide(self, obs, reward, state):
            return np.zeros(2, int), state

        def carry(self, state, resetting):
            return state

    scores = evaluate(Still(), EpisodeStatistics(Ending()), episodes=4, seed=0)
    assert sorted(scores.lengths.tolist()) == [4, 4, 4, 4]
