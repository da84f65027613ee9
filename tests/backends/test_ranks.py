"""Real ranks: started by the command, and joined under mpirun and torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rookery
from rookery.backends.ranks.join import meeting_point
from rookery.backends.ranks.launch import MPI_AS_ROOT, mpirun
from rookery.backends.ranks.slurm import address_of, node_of_rank_0, nodes_named
from rookery.errors import BadInput
from rookery.processes import RankPlace, rank_place
from rookery.runs import checkpoint

SMALL = ["--env-steps", "3_000", "--envs", "4", "--algo.rollout_steps", "32", "--no-preset"]
SMALL += ["--algo.minibatches", "2", "--algo.epochs", "2", "--threads", "1", "--name", "r"]


def train_on_ranks(folder: Path, *more: str, prefix: tuple[str, ...] = ()) -> rookery.TrainedRun:
    program = prefix or (sys.executable,)
    command = [*program, "-m", "rookery", "train", "ppo", "CartPole-v1", *SMALL, *more]
    environment = os.environ | MPI_AS_ROOT
    done = subprocess.run(
        [*command, "--runs-dir", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return rookery.load(folder / "r")


def same_weights(a: rookery.TrainedRun, b: rookery.TrainedRun, tolerance: float = 0.0) -> bool:
    first, second = a.saved.tensors["weights"], b.saved.tensors["weights"]
    return all(torch.allclose(first[k], second[k], rtol=0, atol=tolerance) for k in first)


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    return train_on_ranks(folder, "--actors", "2", "--learner.transport", "gloo")


def test_two_ranks_make_one_run(gloo):
    assert gloo.result["backend"] == "ranks"
    assert gloo.result["transport"] == "gloo"
    assert gloo.result["ranks"] == 2
    assert gloo.progress()[-1]["actors_healthy"] == 2
    assert gloo.progress()[-1]["episode_truncated_share"] == 0
    # 2 x 4 environments x 32 rows a round: what both ranks did is counted, reset rows are not.
    rounds = gloo.result["updates"] / 4
    assert 0.9 * rounds * 256 < gloo.result["env_steps"] <= rounds * 256
    assert sorted(path.name for path in gloo.path.parent.iterdir()) == ["r"]
    assert set(gloo.saved.tensors["random"]) == {"actor.0", "memory.0", "actor.1", "memory.1"}


def test_ranks_draw_different_actions(gloo):
    random = gloo.saved.tensors["random"]
    assert not torch.equal(random["actor.0"], random["actor.1"])


def test_mpi_and_gloo_agree(gloo, tmp_path):
    pytest.importorskip("mpi4py")
    mpi = train_on_ranks(tmp_path, "--actors", "2", "--learner.transport", "mpi")
    assert mpi.result["transport"] == "mpi"
    assert same_weights(gloo, mpi, tolerance=1e-4)


def test_stepping_on_rank_0_agrees_with_stepping_everywhere(gloo, tmp_path):
    more = ["--actors", "2", "--learner.transport", "gloo", "--learner.sync", "broadcast"]
    assert same_weights(gloo, train_on_ranks(tmp_path, *more), tolerance=1e-4)


def test_ranks_resume(gloo, tmp_path):
    before = gloo.saved.step
    command = [sys.executable, "-m", "rookery", "train", "--resume", str(gloo.path)]
    done = subprocess.run(
        [*command, "--env-steps", "6_000", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout[done.stdout.index("{") :])
    assert result["env_steps"] >= 6_000 > before
    # Two epochs, before the resume as after it.
    assert result["samples"] == 2 * result["env_steps"]
    assert result["ranks"] == 2


def test_joining_under_mpirun(tmp_path):
    pytest.importorskip("mpi4py")
    run = train_on_ranks(tmp_path, prefix=(*mpirun(2), sys.executable))
    assert (run.result["ranks"], run.result["transport"]) == (2, "mpi")


def test_joining_under_torchrun(tmp_path):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    run = train_on_ranks(tmp_path, prefix=(*launcher, "--master-port", "29517"))
    assert (run.result["ranks"], run.result["transport"]) == (2, "gloo")


def test_a_rank_whose_environment_fails_ends_all(tmp_path):
    (tmp_path / "fragile.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Fragile(CartPoleEnv):\n"
        "    left = 200\n"
        "    def step(self, action):\n"
        "        Fragile.left -= 1\n"
        "        if Fragile.left < 0:\n"
        "            raise OSError('the cable is out')\n"
        "        return super().step(action)\n"
        "gym.register('Fragile-v0', Fragile, max_episode_steps=50)\n"
    )
    for transport in ("gloo", "mpi"):
        command = [sys.executable, "-m", "rookery", "train", "ppo", "fragile:Fragile-v0", *SMALL]
        command += ["--actors", "2", "--learner.transport", transport, "--runs-dir", transport]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 1, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "the cable is out" in done.stderr
        assert "Traceback" in (tmp_path / transport / "r" / "log.txt").read_text()


@pytest.fixture
def alone(monkeypatch):
    """A process that no launcher started, where Slurm cannot be asked."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "SLURM_", "MASTER_")) or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/no-such-folder")


@pytest.mark.usefixtures("alone")
def test_rank_and_address_come_from_the_environment_of_srun(monkeypatch):
    assert rank_place() is None
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert rank_place() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert rank_place() == ("srun", 3, 4, 0)
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.9")
    assert address_of("no-such-node") == "127.0.0.9"
    assert address_of("localhost") == "127.0.0.1"


def test_slurm_node_lists():
    assert nodes_named("n1") == ["n1"]
    assert nodes_named("a[08-10,3],b-c") == ["a08", "a09", "a10", "a3", "b-c"]
    assert nodes_named("r[1-2]n[1,3]x") == ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]
    assert nodes_named("") == []


@pytest.mark.usefixtures("alone")
def test_the_node_of_rank_0(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-3]")
    assert node_of_rank_0() == "n1"
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST_HET_GROUP_0", "n3")
    monkeypatch.setenv("SLURM_JOB_NODELIST_HET_GROUP_1", "n[1-2]")
    assert node_of_rank_0() == "n3"
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    assert node_of_rank_0() == "n1"
    monkeypatch.setenv("SLURM_DISTRIBUTION", "arbitrary")
    with pytest.raises(BadInput, match="MASTER_ADDR"):
        node_of_rank_0()


@pytest.mark.usefixtures("alone")
def test_steps_of_slurm_jobs_meet_apart(monkeypatch):
    where = RankPlace("srun", 0, 4, 0)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "localhost")
    points = []
    for job in range(4_000, 4_010):
        for step in range(10):
            monkeypatch.setenv("SLURM_JOB_ID", str(job))
            monkeypatch.setenv("SLURM_STEP_ID", str(step))
            points.append(meeting_point(where))
    assert len(set(points)) == 100
    assert all(20_000 <= int(point.rpartition(":")[2]) < 32_000 for point in points)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    assert meeting_point(where) == points[-1].replace("127.0.0.1", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert meeting_point(where) == "tcp://10.0.0.7:29500"


def test_the_first_rank_evaluates_while_all_save(tmp_path):
    ranks = ("--actors", "2", "--learner.transport", "gloo")
    run = train_on_ranks(tmp_path, *ranks, "--eval-steps", "1_000", "--eval-episodes", "3")
    evaluated = [row["eval_episodes"] for row in run.progress() if row.get("eval_return_mean")]
    assert evaluated == [3] * len(evaluated)
    assert len(evaluated) >= 2
    assert run.at("best").saved.step in checkpoint.steps(run.checkpoints)
