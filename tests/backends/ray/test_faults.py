"""A run on a cluster goes on when parts of it are killed."""

import io
import os
import re
import signal

import pytest
from ray_runs import HELPERS

import rookery
from rookery.errors import RunFailed

PPO = ("ppo", "slow_worlds:Slow", "--envs", 4, "--algo.rollout_steps", 16, "--algo.minibatches", 2)
APEX = ("apex", "slow_worlds:Slow", "--envs", 4, "--algo.rollout_steps", 8, "--algo.warm_up", 200)
APEX += ("--algo.capacity", 20000, "--algo.batch_size", 32, "--algo.samples_per_insert", 4)
STATUS = ("--ray.status_seconds", 0.5)


def kill(run, worker):
    os.kill(run.workers()[worker], signal.SIGKILL)


def column(run, name):
    return [row.get(name) or 0 for row in run.rows()]


def check_order(run):
    """What was reported after the checkpoint that a learner went back to is gone."""
    for name in ("env_steps", "updates", "seconds"):
        assert column(run, name) == sorted(column(run, name))


def check_learner_came_back(run):
    assert re.search("a learner was lost: it.*; going back from step", run.log())
    assert "learners restarted (1 of at most 3 times)" in run.log()
    check_order(run)


def test_ppo_goes_on_without_an_actor_and_after_its_learner(command, joined_cluster):
    run = command(
        *PPO, *("--actors", 2, "--env-steps", 16000, "--checkpoint-steps", 1000), *STATUS,
        address=joined_cluster.address,
    )  # fmt: skip
    run.until(lambda r: "checkpoint step_000002" in r.log())
    kill(run, "actor 1")
    run.until(lambda r: "actor 1 restarted on" in r.log())
    assert re.search("actor 1 on .* was lost: it", run.log())
    run.until(lambda r: column(r, "actors_healthy")[-1] == 2)
    assert 1 in column(run, "actors_healthy")
    kill(run, "learner 0")
    assert 16000 <= run.result()["env_steps"] < 16500
    check_learner_came_back(run)


@pytest.mark.long
def test_apex_goes_on_without_an_actor_a_shard_and_its_learner(command):
    run = command(
        *APEX, *("--actors", 2, "--ray.replay_shards", 2, "--env-steps", 30000),
        *("--checkpoint-steps", 1000), *STATUS,
    )  # fmt: skip
    run.until(lambda r: any(fill > 0.1 for fill in column(r, "replay_fill")))
    kill(run, "replay shard 0")
    run.until(lambda r: "replay shard 0 restarted" in r.log())
    kill(run, "actor 1")
    run.until(lambda r: "actor 1 restarted on" in r.log())
    kill(run, "learner 0")
    assert 30000 <= run.result()["env_steps"] < 30500
    check_learner_came_back(run)
    fill = column(run, "replay_fill")
    dip = min(range(1, len(fill)), key=lambda i: fill[i] - fill[i - 1])
    assert fill[dip] < fill[dip - 1]
    assert fill[-1] > fill[dip]
    assert min(column(run, "trained_per_second")) >= 0
    assert column(run, "actors_healthy")[-1] == 2


@pytest.mark.parametrize(
    ("env", "restarts", "told"),
    [
        ("Deadly", 1, "actor 0 was lost 2 times, more than actor_restarts=1 allows; at last: it"),
        ("Raising", 0, "RuntimeError: the simulator lost its licence"),
    ],
)
def test_the_limit_of_restarts_is_named(joined_cluster, tmp_path, monkeypatch, env, restarts, told):
    monkeypatch.syspath_prepend(str(HELPERS))
    settings = {"backend": "ray", "actors": 1, "actor_restarts": restarts, "runs_dir": tmp_path}
    with pytest.raises(RunFailed) as failure:
        rookery.train("ppo", f"slow_worlds:{env}", **settings, name="run", console=io.StringIO())
    assert told in str(failure.value)
    assert "\n" not in str(failure.value)
    assert told in (tmp_path / "run" / "result.json").read_text()
