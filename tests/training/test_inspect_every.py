"""Pictures of what the network gets, from the observations of a run."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

import rookery
import rookery.training.loop
from rookery.envs import EnvOptions, make_env, register_env
from rookery.envs.wrappers import observation_record
from rookery.envs.wrappers.observation_record import observations_of, record_observations

PPO = {"rollout_steps": 16, "minibatches": 2, "epochs": 1}
REPLAY = {"capacity": 1_000, "warm_up": 32, "batch_size": 8, "samples_per_insert": 1.0}


class Counting(gym.Env):
    """Observes the number of steps since it was made."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.seen = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown(), {}

    def step(self, action):
        self.seen += 1
        return self.shown(), 0.0, self.seen % 50 == 0, False, {}

    def shown(self):
        return np.array([self.seen, -self.seen], np.float32)


register_env("Counting", Counting, replace=True)


def train(folder, name="ppo", environment="CartPole-v1", **settings):
    config = {
        "env_steps": 200,
        "envs": 2,
        "threads": 1,
        "use_preset": False,
        "net": {"hidden": (8,)},
    }
    config |= {"algo": PPO if name == "ppo" else REPLAY, "random_baseline": False}
    return rookery.train(name, environment, runs_dir=folder, **(config | settings))


def pictures(run):
    return sorted(path.name for path in (run.path / "plots").glob("*"))


def steps_of(names):
    return [int(name.removeprefix("inspect_").removesuffix(".png")) for name in names]


@pytest.fixture
def drawn(monkeypatch):
    """Recordings that are drawn, instead of drawing them."""
    seen = []
    monkeypatch.setattr(rookery.training.loop, "draw_record", lambda *given: seen.append(given))
    return seen


def test_pictures_are_written_when_the_steps_pass_a_multiple(tmp_path):
    run = train(tmp_path, inspect_every=100)
    names = pictures(run)
    assert [step // 100 for step in steps_of(names)] == [1, 2]
    assert all((run.path / "plots" / name).read_bytes()[:4] == b"\x89PNG" for name in names)
    assert f"inspect: plots/{names[0]}" in run.log_path.read_text()


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_training_is_the_same_with_and_without(name, tmp_path, drawn):
    settings = {"env": {"normalize_obs": True, "frame_stack": 2}}
    plain = train(tmp_path, name, **settings).saved
    watched = train(tmp_path, name, inspect_every=50, **settings).saved
    assert len(drawn) >= 3
    assert plain.meta["updates"] == watched.meta["updates"] > 0
    for part in ("weights", "optimizer", "random", "normalizer"):
        for key, value in plain.tensors[part].items():
            assert torch.equal(watched.tensors[part][key], value)


def test_without_the_setting_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(observation_record.NewestRows, "__init__", None)
    run = train(tmp_path)
    assert not (run.path / "plots").exists()


def test_the_newest_rows_of_the_run_are_drawn(tmp_path, drawn):
    train(tmp_path, environment="Counting", inspect_every=100, env_steps=1_000)
    for shown, title, picture in drawn:
        step = int(picture.stem.removeprefix("inspect_"))
        assert title == f"Counting at step {step:,}"
        # Both environments count alike, and each reset row shows the same number once more.
        counts = shown.seen[()][:, 0]
        assert counts[-1] == step / 2
        assert (np.diff(counts) >= 0).all()
        assert len(counts) == min(300, 1 + step // 2 + step // 100)
        np.testing.assert_array_equal(shown.seen[()][:, 1], -counts)


def test_actor_threads_are_recorded_too(tmp_path, drawn):
    settings = {"backend": "threads", "actors": 2, "env_steps": 400, "inspect_every": 100}
    train(tmp_path, "dqn", **settings)
    assert len(drawn) >= 2
    assert all(len(shown.seen[()]) > 10 for shown, *_ in drawn)


def test_an_actor_that_cannot_answer_is_logged(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr("rookery.backends.serial.observations_of", lambda env: None)
    run = train(tmp_path, inspect_every=150)
    assert "no picture at step" in run.log_path.read_text()
    assert drawn == []


def test_without_matplotlib_the_run_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(rookery.errors.BadInput, match=r"inspect_every.*plots"):
        train(tmp_path, inspect_every=100)
    assert list(tmp_path.iterdir()) == []


def test_raw_rows_and_those_of_the_network_are_aligned():
    options = EnvOptions(frame_stack=3, normalize_obs=True)
    env = record_observations(make_env("Counting", options, num_envs=2))
    assert observations_of(make_env("Counting")) is None
    assert observations_of(env) is None
    kept = [env.reset(seed=0)[0][0].copy()]
    kept += [env.step(np.zeros(2, int))[0][0].copy() for _ in range(320)]
    shown = observations_of(env)
    assert shown.raw[()].shape == (300, 2)
    assert shown.seen[()].shape == (300, 3, 2)
    np.testing.assert_array_equal(shown.seen[()], kept[-300:])
    assert shown.raw[()][-1, 0] == 320 - 6  # without six reset rows
    assert shown.raw_space.shape == (2,)
    assert shown.seen_space.shape == (3, 2)


def test_few_rows_of_large_observations_are_kept(monkeypatch):
    monkeypatch.setattr(observation_record, "RECORDED_BYTES", 80)  # ten rows of two float32
    env = record_observations(make_env("Counting"))
    env.reset(seed=0)
    for _ in range(30):
        env.step(np.zeros(1, int))
    assert observations_of(env).seen[()][:, 0].tolist() == list(range(21, 31))


def test_observations_of_a_pool_are_recorded(tmp_path, drawn):
    train(tmp_path, environment="rookery/Synthetic-v1", inspect_every=100)
    assert len(drawn) == 2
    assert all(np.std(rows) > 0 for shown, *_ in drawn for rows in shown.seen.values())
