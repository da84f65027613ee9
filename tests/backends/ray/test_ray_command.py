"""`rookery train --backend ray` as a user runs it."""

import io
import os
import signal
import time
from pathlib import Path

import pytest
from test_faults import PPO, column

import rookery
from rookery.processes import descendants
from rookery.training.start import resume

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in six, and ::1, as /proc/net writes them."""


def alive(pids):
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}


def test_it_listens_on_loopback_only_and_leaves_nothing_behind(command):
    """Interrupted, it saves, and all that it started ends."""
    run = command(*PPO, "--actors", 2, "--env-steps", 10**7)
    run.until(lambda r: len(r.rows()) > 2)
    started = [each.pid for each in descendants(run.process.pid)]
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started]
    assert sum(b"raylet/raylet" in name for name in names) == 1
    assert sum(b"ray::ActorWorker" in name for name in names) == 2
    hosts = set().union(*(listening(pid) for pid in started))
    assert hosts, "nobody listens, so Ray runs elsewhere"
    assert hosts <= LOOPBACK
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) == 130
    deadline = time.monotonic() + 10
    while alive(started):
        assert time.monotonic() < deadline, alive(started)
        time.sleep(0.1)
    steps = column(run, "env_steps")[-1]
    assert (run.run / "checkpoints" / f"step_{int(steps):09d}").is_dir()
    assert "interrupted" in run.output.read_text()


def listening(pid):
    """The addresses that a process listens on, as the kernel writes them."""
    try:
        owned = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except FileNotFoundError:
        return set()
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        local.partition(":")[0]
        for _, local, _, state, *_, inode in (row[:10] for row in rows)
        if state == "0A" and f"socket:[{inode}]" in owned
    }


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("apex", marks=pytest.mark.long)])
def test_a_run_goes_on_elsewhere(joined_cluster, tmp_path, algorithm):
    """Begun on a cluster and resumed on one core, and the other way round."""
    algo = {"capacity": 5_000, "warm_up": 100} if algorithm == "apex" else {}
    settings = {"envs": 4, "env_steps": 1_500, "algo": algo, "console": io.StringIO()}
    run = rookery.train(
        algorithm, "CartPole-v1", backend="ray", actors=1, runs_dir=tmp_path, **settings
    )
    on_one = resume(run.path, env_steps=3_000, backend="serial", console=io.StringIO())
    assert on_one.result["env_steps"] >= 3_000
    back = resume(run.path, env_steps=4_500, backend="ray", console=io.StringIO())
    assert back.result["backend"] == "ray"
    assert back.result["env_steps"] >= 4_500
    assert back.result["last_report"]["actors_healthy"] == 1
    # Every update of a replay is on a batch, every epoch of PPO on all steps.
    algo, result = back.settings.algo, back.result
    once = algo.batch_size * result["updates"] if algorithm == "apex" else result["env_steps"]
    assert result["samples"] == getattr(algo, "epochs", 1) * once
