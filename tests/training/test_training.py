"""Whole runs in one process: what they write, repeat, resume and refuse."""

from __future__ import annotations

import io
import math

import gymnasium as gym
import numpy as np
import pytest
import torch

import rookery
import rookery.training.loop
from rookery.backends.base import ProcessUsage
from rookery.envs import register_env
from rookery.errors import BadInput, Diverged, RunFailed
from rookery.runs import checkpoint

SMALL = {
    "use_preset": False,
    "env_steps": 2_000,
    "envs": 4,
    "threads": 1,
    "algo": {"rollout_steps": 32, "epochs": 2, "minibatches": 2},
}


def weights(run):
    return run.saved.tensors["weights"]


def train(tmp_path, environment="CartPole-v1", algorithm="ppo", **settings):
    return rookery.train(algorithm, environment, runs_dir=tmp_path, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), checkpoint_steps=500)


def test_a_run_leaves_its_folder(run):
    names = {path.name for path in run.path.iterdir()}
    assert {"config.json", "progress.csv", "result.json", "log.txt", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    columns = set(run.progress()[-1])
    assert columns >= {
        *("env_steps", "updates", "seconds", "env_steps_per_second", "episodes"),
        *("episode_return_mean", "episode_return_min", "episode_return_max"),
        *("episode_return_ema", "episode_length_mean", "episode_truncated_share"),
        *("loss", "grad_norm", "learning_rate"),
        *(
            "entropy",
            "policy_lag_mean",
            "actors_healthy",
            "cpu_percent",
            "memory_mb",
            "ram_percent",
        ),
        *("env_s", "inference_s", "transfer_s", "learn_s", "reduce_s", "wait_s"),
    }
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] >= 2_000
    assert set(run.result) >= {"updates", "seconds", "seed", "versions", "host", "cores", "backend"}
    assert len(checkpoint.steps(run.checkpoints)) == 3


def test_lines_logged_while_the_backend_is_built_are_kept(tmp_path, monkeypatch):
    def make_backend(config, reducer, device, saved, log):
        log("going on without actor 3", "why it is missing")
        return made(config, reducer, device, saved, log)

    made = rookery.training.loop.make_backend
    monkeypatch.setattr("rookery.training.loop.make_backend", make_backend)
    console = io.StringIO()
    run = train(tmp_path, env_steps=200, console=console)
    assert console.getvalue().count("going on without actor 3\n") == 1
    assert "going on without actor 3\n    why it is missing\n" in (run.path / "log.txt").read_text()


def test_the_same_config_gives_the_same_weights(run, tmp_path):
    again = train(tmp_path)
    other = train(tmp_path, seed=2)
    assert all(torch.equal(weights(again)[name], value) for name, value in weights(run).items())
    assert not all(torch.equal(weights(other)[name], value) for name, value in weights(run).items())


def test_policy_answers_for_single_observations(run):
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = run.policy(obs)
    assert env.action_space.contains(action)
    assert run.policy(obs) == action


def test_evaluation_is_exact_and_repeatable(run):
    scores = run.evaluate(episodes=7)
    assert scores["episodes"] == 7
    assert scores == run.evaluate(episodes=7)
    assert scores["return_mean"] != run.evaluate(episodes=7, seed=5)["return_mean"]


def test_resuming_continues_counters_schedule_and_optimizer(tmp_path):
    half = train(tmp_path, env_steps=4_000, checkpoint_steps=2_000)
    whole = half.saved
    early = checkpoint.load_checkpoint(
        checkpoint.path_of(half.checkpoints, checkpoint.steps(half.checkpoints)[0])
    )
    # Go back to the first checkpoint, as if the run had been killed after it.
    for step in checkpoint.steps(half.checkpoints)[1:]:
        for file in checkpoint.path_of(half.checkpoints, step).iterdir():
            file.unlink()
    resumed = rookery.resume(half.path)
    rows = [row for row in resumed.progress() if row["env_steps"] > early.step]
    assert rows[0]["updates"] > early.meta["updates"]
    # Linear annealing: the rate is that of the step the round began at.
    config = resumed.settings
    rate = config.algo.learning_rate * (1 - early.step / config.env_steps)
    assert rows[0]["learning_rate"] <= rate
    assert rows[0]["learning_rate"] > 0.8 * rate - config.algo.learning_rate * 0.1
    assert resumed.saved.meta["updates"] == whole.meta["updates"]
    assert abs(resumed.saved.step - whole.step) < 200
    steps = resumed.saved.tensors["optimizer"]["step"]
    assert int(steps) == resumed.saved.meta["updates"]
    assert resumed.result["episodes"] > early.meta["episodes"]


def test_learning_rate_starts_full_and_ends_near_zero(tmp_path):
    from rookery.backends.factory import make_backend
    from rookery.config import resolve
    from rookery.learning.reduce import Reducer
    from rookery.training.reporter import Progress

    config = resolve(
        "ppo", "CartPole-v1", {k: v for k, v in SMALL.items() if k != "use_preset"}
    ).config
    backend, progress, rates = make_backend(config, Reducer(), torch.device("cpu")), Progress(), []
    while progress.env_steps < config.env_steps:
        backend.advance(progress.env_steps)
        progress.add(backend.report(False, ProcessUsage()))
        rates.append(backend.metrics(1.0)["learning_rate"])
    assert rates[0] == config.algo.learning_rate
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.1 * config.algo.learning_rate


def test_resume_goes_on_for_longer(run, tmp_path):
    first = train(tmp_path)
    more = rookery.resume(first.path, env_steps=3_000)
    assert more.result["env_steps"] >= 3_000
    assert [row["env_steps"] for row in more.progress()] == sorted(
        row["env_steps"] for row in more.progress()
    )


def test_a_cut_checkpoint_is_passed_over(tmp_path):
    first = train(tmp_path, checkpoint_steps=500)
    newest = checkpoint.path_of(first.checkpoints, checkpoint.steps(first.checkpoints)[-1])
    file = newest / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadInput, match="truncated"):
        checkpoint.load_checkpoint(newest)
    again = rookery.resume(first.path)
    assert "truncated" in again.log_path.read_text()
    assert again.result["status"] == "finished"


def test_a_checkpoint_of_another_network_is_refused(run, tmp_path):
    first = train(tmp_path)
    with pytest.raises(BadInput, match="different network"):
        rookery.resume(first.path, env_steps=9_000, net={"hidden": (8,)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": {"normalize_obs": True}}, "env.normalize_obs"),
        ({"env": {"normalize_reward": True}}, "env.normalize_reward"),
        ({"algo": {"optimizer": "rmsprop"}}, "algo.optimizer"),
    ],
)
def test_what_a_checkpoint_lacks_is_named(settings, words, tmp_path):
    first = train(tmp_path, env_steps=200)
    with pytest.raises(BadInput, match=words):
        rookery.resume(first.path, env_steps=9_000, **settings)
    assert rookery.load(first.path).config == first.config


def test_an_old_stop_file_does_not_stop_a_resumed_run(tmp_path):
    first = train(tmp_path, env_steps=200)
    first.stop_path.touch()
    assert rookery.resume(first.path, env_steps=600).result["status"] == "finished"


def test_a_taken_name_is_refused(tmp_path):
    first = train(tmp_path, name="mine")
    with pytest.raises(BadInput, match="mine"):
        train(tmp_path, name="mine")
    assert first.result["status"] == "finished"


class Failing(gym.Env):
    """Plays well for a while, then does something bad."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how: str = "raise", after: int = 100):
        self.how, self.left = how, after

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        obs, reward = np.zeros(2, np.float32), 1.0
        if self.left < 0:
            if self.how == "raise":
                raise ZeroDivisionError("the simulator is out of fuel")
            if self.how == "nan":
                obs = np.full(2, np.nan, np.float32)
            if self.how == "outside":
                obs = np.full(2, 7.0, np.float32)
            if self.how == "reward":
                reward = math.inf
        return obs, reward, False, self.left % 20 == 0, {}


register_env("Failing", Failing, replace=True)


@pytest.mark.parametrize("how", ["raise", "nan", "outside", "reward"])
def test_a_failing_environment_loses_nothing(how, tmp_path):
    with pytest.raises(RunFailed) as error:
        train(
            tmp_path, "Failing", name="failing", env={"kwargs": {"how": how}}, checkpoint_steps=130
        )
    assert "\n" not in str(error.value)
    assert "Failing" in str(error.value)
    left = rookery.load(tmp_path / "failing")
    assert left.saved.step > 0
    assert left.result["status"] == "failed"
    if how == "raise":
        assert "out of fuel" in str(error.value)
        assert "ZeroDivisionError" in left.log_path.read_text()
        assert (
            'raise ZeroDivisionError("the simulator is out of fuel")' in left.log_path.read_text()
        )


def test_divergence_ends_the_run_and_keeps_what_was_saved(tmp_path):
    with pytest.raises(Diverged, match="learning_rate"):
        train(
            tmp_path,
            "Pendulum-v1",
            name="wild",
            env_steps=20_000,
            algo={"learning_rate": 1e30, "max_grad_norm": 0.0, "rollout_steps": 32},
        )
    left = rookery.load(tmp_path / "wild")
    assert left.result["status"] == "failed"
    assert "diverged" in left.log_path.read_text()


def test_an_action_space_no_policy_drives_is_refused(tmp_path):
    class Odd(Failing):
        action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})

    register_env("Odd", Odd, replace=True)
    with pytest.raises(BadInput, match="Dict"):
        train(tmp_path, "Odd")


@pytest.mark.parametrize("algorithm", ["ppo", "vpg"])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_every_observation_and_action_space_trains(algorithm, core, tmp_path):
    spaces = gym.spaces
    parts = {
        "vector": spaces.Box(-1, 1, (3,)),
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
        "many": spaces.MultiDiscrete([2, 3]),
    }
    for action in (
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-2, 2, (2,)),
    ):

        class Sampling(gym.Env):
            observation_space = spaces.Dict(parts)
            action_space = action

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.observation_space.seed(seed)
                self.steps = 0
                return self.observation_space.sample(), {}

            def step(self, action):
                assert self.action_space.contains(action)
                self.steps += 1
                return self.observation_space.sample(), 1.0, self.steps == 7, False, {}

        register_env("Sampling", Sampling, replace=True)
        algo = {"rollout_steps": 10} if algorithm == "ppo" else {"episodes": 4}
        run = train(tmp_path, "Sampling", algorithm, env_steps=50, algo=algo, net={"core": core})
        assert run.result["episode_return_mean"] == 7
        assert action.contains(run.policy(Sampling.observation_space.sample()))


def test_normalisation_is_saved_and_frozen(tmp_path):
    run = train(
        tmp_path,
        "Pendulum-v1",
        env={"normalize_obs": True, "normalize_reward": True},
        env_steps=600,
    )
    saved = run.saved.tensors["normalizer"]
    env = run.make_env(2)
    env.reset(seed=0)
    for _ in range(5):
        env.step(env.action_space.sample())
    from rookery.envs import statistics

    merged = statistics(env)["obs"].state()["merged"]
    assert np.array_equal(merged, saved["obs.merged"].numpy())
    raw = np.array([1.0, 0.0, 5.0], np.float32)
    assert np.isfinite(run.policy(raw)).all()
    # The policy normalises by itself: what it decides equals deciding on the scaled observation.
    mean, spread = merged[1:4], merged[4:7] / merged[0]
    scaled = ((raw - mean) / np.sqrt(spread + 1e-8)).clip(-10, 10).astype(np.float32)
    policy = run.policy
    direct, _ = policy.decide(scaled[None], np.zeros(1), policy.begin(1))
    assert np.allclose(policy(raw), direct[0], atol=1e-5)


def test_stopping_by_return_and_by_time(tmp_path):
    solved = train(tmp_path, env_steps=100_000, stop_return=10.0)
    assert solved.result["status"] == "solved"
    assert solved.result["episodes"] >= 100
    stopped = train(tmp_path, env_steps=10_000_000, stop_minutes=0.01)
    assert stopped.result["status"] == "time is up"
