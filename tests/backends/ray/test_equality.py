"""The same run on a cluster and elsewhere learns the same."""

import io

import pytest
import torch
from in_process import Handle, Here
from scenes import CPU

import rookery
from rookery.backends.factory import make_backend, seeds, spaces_of
from rookery.backends.ray import remote_replay
from rookery.backends.ray.asynchronous import shard_config
from rookery.backends.ray.messages import Origin, to_arrays
from rookery.backends.ray.workers import LearnerWorker, ShardWorker, WorkerSpec
from rookery.config import resolve
from rookery.learning.reduce import Reducer
from rookery.runs import checkpoint

BOTH = {"normalize_obs": True, "normalize_reward": True}
DQN = {"capacity": 4_000, "warm_up": 100, "samples_per_insert": 4, "target_period": 5}


def trained(folder, name, algorithm, **settings):
    """Rows of the progress of a run, and its last weights."""
    run = rookery.train(
        algorithm, "CartPole-v1", use_preset=False, runs_dir=folder, name=name,
        console=io.StringIO(), threads=1, **settings,
    )  # fmt: skip
    saved = checkpoint.load_newest(run.path / "checkpoints")
    return run.progress(), saved.tensors["weights"]


def updates_told(run):
    """What the log says of how updates are computed."""
    log = (run / "log.txt").read_text().splitlines()
    return [line.partition("updates: ")[2] for line in log if "updates: " in line]


def check_same(ours, theirs, tolerance=1e-5):
    (rows, weights), (others, expected) = ours, theirs
    assert rows[-1]["env_steps"] == others[-1]["env_steps"]
    assert rows[-1]["updates"] == others[-1]["updates"]
    assert rows[-1]["episode_return_mean"] == others[-1]["episode_return_mean"]
    assert rows[-1]["episode_truncated_share"] == others[-1]["episode_truncated_share"]
    for measured in (rows, others):
        assert any(row.get("policy_churn") is not None for row in measured)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"env": {"normalize_obs": True}, "algo": {"rollout_steps": 32}}),
        ("dqn", {"algo": DQN | {"rollout_steps": 4, "alpha": 0.6}}),
        ("dqn", {"env": BOTH, "algo": DQN | {"rollout_steps": 4, "alpha": 0.6}}),
        ("vpg", {"algo": {"episodes": 6}, "env": {"time_limit": 20}}),
    ],
    ids=["ppo", "dqn", "normalised dqn", "vpg"],
)
def test_one_actor_and_one_learner_are_a_serial_run(joined_cluster, tmp_path, algorithm, settings):
    settings = settings | {"envs": 4, "env_steps": 2_000}
    serial = trained(tmp_path, "serial", algorithm, backend="serial", **settings)
    check_same(trained(tmp_path, "ray", algorithm, backend="ray", actors=1, **settings), serial, 0)
    told = [updates_told(tmp_path / name) for name in ("serial", "ray")]
    assert told[0] == told[1]
    assert len(told[0]) == 1


def test_learners_of_a_cluster_are_ranks(joined_cluster, tmp_path):
    """Two actors with a learner each do what two ranks do."""
    settings = {"envs": 4, "env_steps": 2_000, "actors": 2, "algo": {"rollout_steps": 32}}
    transport = {"transport": "gloo"}
    ranks = trained(tmp_path, "ranks", "ppo", backend="ranks", learner=transport, **settings)
    check_same(trained(tmp_path, "ray", "ppo", backend="ray", learners=2, **settings), ranks)


def test_a_learner_on_replay_shards_does_what_one_with_its_own_replay_does(monkeypatch):
    """Ape-X, given the same segments in the same order: draws, priorities and weights agree."""
    here = Here(monkeypatch)
    algo = {"capacity": 4_000, "warm_up": 200, "samples_per_insert": 2, "rollout_steps": 4}
    settings = {"envs": 4, "backend": "serial", "threads": 1, "algo": algo}
    config = resolve("apex", "CartPole-v1", settings, use_preset=False).config
    serial = make_backend(config, Reducer(), CPU)
    own = serial.learner
    spec = WorkerSpec(config, spaces_of(serial.actor.env), 0, [], None)
    shard = ShardWorker(spec._replace(config=shard_config(config, 1)))
    worker = LearnerWorker(spec)
    shard.begin(1, seeds(config.seed, 0, 0, 0)[1])
    worker.begin(0, 1, "", 1, None, None)
    worker.prefetch.stop()
    monkeypatch.setattr(remote_replay, "MAX_BATCHES_TOGETHER", 1)
    worker.replay.ahead = 1
    worker.set_shards({7: Handle(here, shard)})
    for number in range(120):
        segment = own.algorithm.prepare(serial.actor.collect(0))
        shard.add(to_arrays(segment), 0, Origin("a", number), {})
        serial.memory.add(segment)
        for batch in serial.memory.batches():
            assert any(worker.replay.wait_until_due(1.0) for _ in range(1_000))
            drawn = worker.learner.algorithm.precompute_targets(worker.replay.sample())
            expected, outcome = own.update(batch), worker.learner.update(drawn)
            serial.memory.reweigh(batch.keys, expected.priorities)
            worker.replay.reweigh(drawn.keys, outcome.priorities)
            torch.testing.assert_close(outcome.priorities, expected.priorities, rtol=0, atol=1e-5)
        assert shard.memory.due() == 0
    assert own.updates == worker.learner.updates > 5
    torch.testing.assert_close(worker.learner.flat.values, own.flat.values, rtol=0, atol=1e-5)
