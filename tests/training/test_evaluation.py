"""Evaluation while training: on its own environments, reported, the best kept."""

from __future__ import annotations

import os

import gymnasium as gym
import numpy as np
import pytest
import torch
from scenes import CPU, FLAT, make

import rookery
from rookery.algorithms.base import Spaces
from rookery.algorithms.dqn import DQN
from rookery.envs import make_env, register_env
from rookery.learning.evaluate import evaluate
from rookery.learning.policy import Policy, RandomPolicy
from rookery.runs import checkpoint
from rookery.training.loop import passes_multiple

REPLAY = {"capacity": 2_000, "warm_up": 32, "batch_size": 8, "samples_per_insert": 2.0}
ALGO = {
    "dqn": REPLAY,
    "r2d2": REPLAY | {"burn_in": 2, "unroll": 4, "n_step": 2},
    "ppo": {"rollout_steps": 16, "minibatches": 2, "epochs": 1},
}


def train(folder, name="dqn", environment="CartPole-v1", algo=None, **settings):
    net = {"hidden": (8,)} | ({"core": "lstm", "core_size": 8} if name == "r2d2" else {})
    config = {"env_steps": 200, "envs": 2, "threads": 1, "use_preset": False, "net": net}
    config |= {"algo": ALGO[name] | (algo or {}), "eval_episodes": 2} | settings
    return rookery.train(name, environment, runs_dir=folder, **config)


def where(run, name):
    """The step that the link `name` leads to."""
    target = os.readlink(run.checkpoints / name)
    assert (run.checkpoints / target / "meta.json").is_file()
    return int(target.removeprefix("step_"))


class Declining(gym.Env):
    """Every new copy pays less than the one before it."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self):
        type(self).made += 1
        self.pay = 100.0 - self.made

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.pay, self.t == 5, False, {}


class Rising(Declining):
    """Every new copy pays more than the one before it."""

    def __init__(self):
        super().__init__()
        self.pay = 1.0 * self.made


register_env("Declining", Declining, replace=True)
register_env("Rising", Rising, replace=True)


def evaluations(run):
    rows = [row for row in run.progress() if row.get("eval_return_mean") is not None]
    return {int(row["env_steps"]): row for row in rows}


def test_evaluations_are_reported_on_time(tmp_path):
    run = train(tmp_path, eval_steps=50, eval_episodes=3, eval_epsilon=0.25)
    found = evaluations(run)
    assert [step // 50 for step in found] == [1, 2, 3, 4]
    assert all(step % 50 < 4 for step in found)
    for row in found.values():
        assert (row["eval_episodes"], row["eval_epsilon"]) == (3, 0.25)
        assert row["eval_return_mean"] == row["eval_length_mean"] > 0
        assert row["eval_return_std"] >= 0
        assert row["eval_return_iqm"] > 0
    assert where(run, "last") == run.saved.step
    best = max(found, key=lambda step: (found[step]["eval_return_mean"], -step))
    assert where(run, "best") == best
    log = run.log_path.read_text()
    assert log.count("evaluation at step") == 4
    assert "best so far" in log


def test_without_evaluations_there_is_no_best(tmp_path):
    run = train(tmp_path)
    assert not (run.checkpoints / "best").exists()
    assert where(run, "last") == run.saved.step
    assert evaluations(run) == {}


def test_the_best_outlives_all_others_and_a_resumed_run(tmp_path):
    settings = {"eval_steps": 40, "eval_episodes": 1, "keep_checkpoints": 1}
    run = train(tmp_path, environment="Declining", **settings)
    first = min(evaluations(run))
    assert where(run, "best") == first < where(run, "last")
    assert checkpoint.steps(run.checkpoints) == [first, run.saved.step]
    assert run.saved.meta["best"][0] == first
    more = rookery.resume(run.path, env_steps=320)
    assert where(more, "best") == first
    assert where(more, "last") == checkpoint.steps(run.checkpoints)[-1] > run.saved.step
    assert checkpoint.steps(run.checkpoints)[0] == first
    assert len(checkpoint.steps(run.checkpoints)) == 2


def test_a_better_one_takes_the_bests_place(tmp_path):
    run = train(tmp_path, environment="Rising", eval_steps=40, eval_episodes=1, keep_checkpoints=1)
    last = max(evaluations(run))
    assert where(run, "best") == last
    assert set(checkpoint.steps(run.checkpoints)) == {last, run.saved.step}
    more = rookery.resume(run.path, env_steps=320)
    assert where(more, "best") > last


@pytest.mark.parametrize(
    ("name", "algo"), [("dqn", {}), ("dqn", {"noisy": True}), ("r2d2", {}), ("ppo", {})], ids=str
)
def test_training_goes_its_way_unexamined(name, algo, tmp_path):
    plain = train(tmp_path, name, algo=algo, env_steps=120).saved
    # Checkpoints are written at other steps, the last of them at the same.
    seen = train(tmp_path, name, algo=algo, env_steps=120, eval_steps=30, eval_epsilon=0.5).saved
    assert plain.step == seen.step
    assert plain.meta["updates"] == seen.meta["updates"] > 0
    assert plain.meta["returns"] == seen.meta["returns"]
    for part in ("weights", "optimizer", "random"):
        for key, value in plain.tensors[part].items():
            assert torch.equal(seen.tensors[part][key], value)


def test_scores_repeat_for_the_same_weights(tmp_path):
    run = train(tmp_path, env_steps=40, eval_steps=20, algo={"learning_rate": 1e-30})
    rows = list(evaluations(run).values())
    assert len(rows) == 2
    assert rows[0]["eval_return_mean"] == rows[1]["eval_return_mean"]
    assert rows[0]["eval_return_iqm"] == rows[1]["eval_return_iqm"]


def test_normalised_observations_are_seen_as_in_training(tmp_path):
    run = train(tmp_path, "ppo", "Pendulum-v1", eval_steps=100, env={"normalize_obs": True})
    assert len(evaluations(run)) == 2


def test_when_an_evaluation_is_due():
    pairs = [(0, 99), (99, 100), (100, 101), (150, 420), (420, 499), (499, 500)]
    due = [passes_multiple(100, *pair) for pair in pairs]
    assert due == [False, True, False, True, False, True]
    assert not passes_multiple(None, 0, 10**9)


@pytest.mark.parametrize(("epsilon", "best"), [(0.0, 1.0), (0.5, 0.625), (1.0, 0.25)])
def test_epsilon_is_the_share_of_random_actions(epsilon, best):
    algorithm = make(DQN, FLAT)
    policy = Policy(algorithm, FLAT, CPU, epsilon=epsilon)
    count = 4_000
    action, _ = policy.decide(np.zeros((count, 3), np.float32), np.zeros(count), ())
    greedy = int(algorithm.act(torch.zeros(1, 3), torch.zeros(1), (), None, None).action)
    assert (action == greedy).mean() == pytest.approx(best, abs=0.04)


def test_an_epsilon_of_1_is_random_play(tmp_path):
    # An untrained network pushes one way for nine steps or so; chance gives 22 on average.
    run = train(tmp_path, env_steps=20, eval_steps=20, eval_episodes=60, eval_epsilon=1.0)
    (row,) = evaluations(run).values()
    env = make_env("CartPole-v1", num_envs=8, training=False)
    random = RandomPolicy(Spaces(env.single_observation_space, env.single_action_space))
    chance = evaluate(random, env, 60, 1).summary()
    assert row["eval_return_mean"] == pytest.approx(chance["return_mean"], abs=7)
    assert row["eval_return_mean"] > 15


def bias_columns(row):
    return [row.get(f"eval_{name}") for name in ("value_mean", "discounted_return_mean")]


@pytest.mark.parametrize("name", ["ppo", "dqn", "r2d2"])
def test_values_are_compared_with_discounted_returns(name, tmp_path):
    # Two steps, of which the second pays 1: returns gamma and 1.
    run = train(tmp_path, name, "rookery/Probe3-v0", {"gamma": 0.6}, eval_steps=100)
    for row in evaluations(run).values():
        value, discounted = bias_columns(row)
        assert discounted == pytest.approx(0.8)
        assert row["eval_value_bias"] == pytest.approx(value - discounted)


def test_learned_values_agree_with_returns(tmp_path):
    algo = {"rollout_steps": 64, "learning_rate": 0.01, "epochs": 4, "gamma": 0.6, "anneal": False}
    run = train(tmp_path, "ppo", "rookery/Probe3-v0", algo, env_steps=2_000, eval_steps=1_000)
    row = evaluations(run)[max(evaluations(run))]
    assert row["eval_value_mean"] == pytest.approx(0.8, abs=0.02)
    assert row["eval_value_bias"] == pytest.approx(0, abs=0.02)


def test_there_is_nothing_to_compare_without_values_or_returns(tmp_path):
    settings = {"eval_steps": 100, "env_steps": 100, "algo": {"rollout_steps": 16}}
    truncated = train(tmp_path, "ppo", "Pendulum-v1", **settings)
    mean = {"baseline": "mean", "episodes": 4}
    no_values = rookery.train(
        "vpg", "CartPole-v1", runs_dir=tmp_path, use_preset=False, env_steps=100, threads=1,
        eval_steps=100, eval_episodes=2, algo=mean,
    )  # fmt: skip
    for run in (truncated, no_values):
        rows = evaluations(run)
        assert len(rows) >= 1
        assert all(bias_columns(row) == [None, None] for row in rows.values())
