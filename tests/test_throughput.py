"""Reported throughput counts the samples learned from, however an update is divided."""

import re

import pytest
from scenes import CPU

import rookery
from rookery.backends.factory import make_backend
from rookery.config import resolve
from rookery.learning.reduce import Reducer
from rookery.runs import checkpoint

STEPS = 3_000


def train(tmp_path, algorithm="vpg", **settings):
    return rookery.train(
        algorithm,
        "CartPole-v1",
        runs_dir=tmp_path,
        env_steps=STEPS,
        use_preset=False,
        threads=1,
        **settings,
    )


def reported(run):
    """Return the sum over reports of throughput times seconds since the previous report."""
    total, before = 0.0, 0.0
    for row in run.progress():
        total += (row["throughput"] or 0.0) * (row["seconds"] - before)
        before = row["seconds"]
    return total


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_throughput_times_seconds_equals_samples(tmp_path, micro_batches, ranks):
    """VPG learns from every row once, so samples equal steps."""
    run = train(
        tmp_path,
        envs=4,
        algo={"episodes": None, "rollout_steps": 40},
        learner={"micro_batches": micro_batches},
        **({"backend": "ranks", "actors": 2} if ranks == 2 else {"backend": "serial"}),
    )
    result = run.result
    assert result["ranks"] == ranks
    assert result["samples"] == result["env_steps"] >= STEPS
    assert reported(run) == pytest.approx(result["samples"], rel=0.01)


def test_samples_count_every_epoch(tmp_path):
    algo = {"epochs": 3, "minibatches": 4, "rollout_steps": 50}
    run = train(tmp_path, "ppo", envs=4, algo=algo, backend="serial")
    assert run.result["samples"] == 3 * run.result["env_steps"]
    assert reported(run) == pytest.approx(run.result["samples"], rel=0.01)


def test_resumed_run_counts_all_samples_but_throughput_since_the_resume(tmp_path):
    algo = {"episodes": None, "rollout_steps": 40}
    half = train(tmp_path, envs=4, algo=algo, backend="serial")
    assert half.saved.meta["samples"] == half.result["samples"] == half.result["env_steps"]
    run = rookery.resume(half.path, env_steps=2 * STEPS)
    result = run.result
    assert result["samples"] == result["env_steps"] >= 2 * STEPS
    assert reported(run) == pytest.approx(result["samples"], rel=0.01)
    an_update = result["throughput"] * result["latency_ms"] / 1000
    assert 0 < an_update <= 4 * 40


def test_resumed_run_on_threads_counts_all_samples(tmp_path):
    algo = {"capacity": 500, "warm_up": 100, "batch_size": 8, "samples_per_insert": 1.0}
    settings = {"backend": "threads", "actors": 1, "envs": 2, "net": {"hidden": (8,)}}
    half = train(tmp_path, "dqn", algo=algo, **settings)
    before = half.result["samples"]
    result = rookery.resume(half.path, env_steps=STEPS + 500).result
    assert result["samples"] == 8 * result["updates"] > before > 0


def test_checkpoint_without_samples_counts_them_from_0(tmp_path):
    half = train(tmp_path, envs=4, algo={"episodes": None, "rollout_steps": 40}, backend="serial")
    meta = {name: value for name, value in half.saved.meta.items() if name != "samples"}
    checkpoint.save_checkpoint(half.checkpoints, half.saved.step, half.saved.tensors, meta)
    result = rookery.resume(half.path, env_steps=STEPS + 500).result
    assert result["samples"] == result["env_steps"] - half.saved.step


def test_throughput_excludes_the_warm_up(tmp_path):
    algo = {"epochs": 1, "minibatches": 2, "rollout_steps": 50}
    run = train(tmp_path, "ppo", envs=4, algo=algo, backend="serial", warm_up_updates=6)
    result, rows = run.result, run.progress()
    assert result["updates"] > 12
    seconds = result["latency_ms"] / 1000 * (result["updates"] - 6)
    assert 0 < seconds < rows[-1]["seconds"]
    whole = build_samples(algo)
    assert result["throughput"] * seconds == pytest.approx(result["samples"] - whole, rel=1e-6)


def build_samples(algo):
    """Return the samples of the first three rounds: six updates."""
    settings = {"envs": 4, "algo": algo, "backend": "serial"}
    config = resolve("ppo", "CartPole-v1", settings, use_preset=False).config
    backend = make_backend(config, Reducer(), CPU)
    for _ in range(3):
        backend.advance(0)
    backend.close()
    return float(backend.learner.samples)


def test_run_that_ends_during_warm_up_reports_no_throughput(tmp_path):
    run = train(tmp_path, "ppo", envs=4, backend="serial", warm_up_updates=10**6)
    assert "throughput" not in run.result
    assert run.result["samples"] > 0


def test_batch_size_in_megabytes_is_printed_first(tmp_path, capsys):
    """64 rows: observation of 4 floats, action, reward, discount, mask and PPO's extra fields."""
    import sys

    rookery.train(
        *("ppo", "CartPole-v1"),
        runs_dir=tmp_path,
        env_steps=500,
        use_preset=False,
        envs=4,
        algo={"rollout_steps": 32, "minibatches": 2, "epochs": 1},
        console=sys.stdout,
    )
    lines = capsys.readouterr().out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("input: ")]
    assert re.fullmatch(r"input: 0\.00\d MB a batch", lines[at])
    first = next(i for i, line in enumerate(lines) if line.startswith("step "))
    assert at < first
