"""Batch scripts on a real Slurm: they train, bear interruptions, and leave nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import rookery

COMMAND = [sys.executable, "-m", "rookery", "slurm"]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

STEADY = ["vpg", "rookery/Synthetic-v1", "--nodes", "2", "--envs", "4", "--threads", "1"]
STEADY += ["--env.kwargs", '{"length": 1000000, "sleep_ms": 10}', "--algo.episodes", "none"]
STEADY += ["--algo.rollout_steps", "16", "--env-steps", "6_000"]
ROUND = 2 * 4 * 16
"""Steps of a round of STEADY: its episodes never end, so that every row is a step."""
AS_PLACES = ["--net.parts", '{"plants": {"reduce": "keep"}}']
"""What the encoder of Greenhouse-v0 needs: its plants side by side."""


def submit(slurm, folder: Path, *args: object) -> tuple[str, Path]:
    """The number of a job, and the folder of its run."""
    options = ["--runs-dir", folder, "--name", "run", "--submit", "--json"]
    options += ["--sbatch", f"output={folder}/log"]
    done = slurm.run(*COMMAND, *args, *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["job"], Path(told["run"])


def again(slurm, run: Path) -> str:
    """The number of a job that goes on with the run."""
    done = slurm.run("sbatch", "--parsable", run.with_name("run.sbatch"))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until_ended(slurm, number: str, run: Path, seconds: float = 150) -> dict[str, str]:
    """What Slurm tells of a job that is over; none of its processes is left."""
    slurm.until(lambda: slurm.job(number)["JobState"] in ENDED, "the job is over", seconds)
    assert slurm.remaining(20) == {}
    assert not list(run.parent.glob("*.token"))
    return slurm.job(number)


def until_it_trains(slurm, number: str, run: Path) -> None:
    """Wait for a report with a row or two."""

    def trains() -> bool:
        assert slurm.job(number)["JobState"] not in ENDED, (run.parent / "log").read_text()
        table = run / "progress.csv"
        return table.exists() and table.read_text().count("\n") > 2

    slurm.until(trains, "it trains", 60)


def log_of(run: Path) -> str:
    return (run.parent / "log").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "nodes"), [("srun", 3), ("mpirun", 2)])
def test_ranks_solve_cartpole(slurm, tmp_path, launcher, nodes):
    args = ["ppo", "CartPole-v1", "--nodes", nodes, "--launcher", launcher, "--time", "10"]
    args += ["--envs", 32 // nodes, "--stop-return", "475"]
    number, run = submit(slurm, tmp_path, *args)
    job = until_ended(slurm, number, run)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log_of(run)
    result = rookery.load(run).result
    assert (result["status"], result["ranks"]) == ("solved", nodes)
    assert result["transport"] == ("mpi" if launcher == "mpirun" else "gloo")
    assert result["episode_return_mean"] >= 475


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ray", "hetero"])
def test_a_ray_cluster_solves_cartpole(slurm, tmp_path, kind):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rookery[ray]'")
    before = set(Path("/tmp").glob("rookery-*"))
    nodes = {"ray": 3, "hetero": 1}[kind]
    args = ["ppo", "CartPole-v1", "--kind", kind, "--nodes", nodes, "--cpus-per-node", "2"]
    args += ["--actors", "2", "--envs", "16", "--stop-return", "475"]
    number, run = submit(slurm, tmp_path, *args, "--time", "10")
    job = until_ended(slurm, number, run, 240)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log_of(run)
    assert "ray on 3 nodes, 2 actors" in log_of(run)
    result = rookery.load(run).result
    assert (result["status"], result["backend"]) == ("solved", "ray")
    assert result["episode_return_mean"] >= 475
    assert set(Path("/tmp").glob("rookery-*")) <= before


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ranks", "ray"])
@pytest.mark.parametrize(
    ("environment", "settings", "at_least"),
    [
        ("TwoState-v0", ["--env-steps", "16_000", "--algo.rollout_steps", "32"], 0.8),
        ("Greenhouse-v0", ["--env-steps", "60_000", "--algo.gamma", "0.5", *AS_PLACES], 25),
    ],
)
def test_an_environment_of_ones_own_is_trained_by_name(
    slurm, tmp_path, kind, environment, settings, at_least, monkeypatch
):
    package = Path(__file__).parents[2] / "examples" / "custom_env"
    paths = os.pathsep.join([str(package), slurm.env.get("PYTHONPATH", "")])
    monkeypatch.setitem(slurm.env, "PYTHONPATH", paths.rstrip(os.pathsep))
    args = ["ppo", f"twostate:{environment}", "--kind", kind, "--nodes", 2, "--time", "10"]
    args += ["--actors", "2"] if kind == "ray" else []
    number, run = submit(slurm, tmp_path, *args, *settings)
    assert until_ended(slurm, number, run)["JobState"] == "COMPLETED", log_of(run)
    assert rookery.load(run).result["episode_return_mean"] > at_least


@pytest.mark.long
def test_a_requeued_job_ends_with_the_steps_of_one_that_was_not(slurm, tmp_path):
    number, run = submit(slurm, tmp_path, *STEADY)
    until_it_trains(slurm, number, run)
    # The signal that Slurm sends ahead of the time limit, to the script alone.
    assert slurm.run("scancel", "--batch", "--signal=USR1", number).returncode == 0
    slurm.until(lambda: slurm.job(number)["Restarts"] == "1", "the job is requeued")
    saved = rookery.load(run).saved.step
    assert 0 < saved < 6_000, log_of(run)
    job = until_ended(slurm, number, run)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), log_of(run)
    assert f"resuming at step {saved:,}" in log_of(run)
    # The first whole round at or beyond 6,000 steps, whether interrupted or not.
    assert rookery.load(run).result["env_steps"] == -(-6_000 // ROUND) * ROUND
    assert rookery.load(run).result["status"] == "finished"


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--kind", "ray", "--actors", "2"]], ids=["ranks", "ray"])
def test_a_cancelled_job_can_be_resumed(slurm, tmp_path, options):
    if options:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rookery[ray]'")
    number, run = submit(slurm, tmp_path, *STEADY, *options)
    until_it_trains(slurm, number, run)
    assert slurm.run("scancel", number).returncode == 0
    assert until_ended(slurm, number, run)["JobState"] == "CANCELLED"
    result = rookery.load(run).result
    assert result["status"] == "interrupted", log_of(run)
    assert rookery.load(run).saved.step == result["env_steps"] > 0
    number = again(slurm, run)
    assert until_ended(slurm, number, run)["JobState"] == "COMPLETED", log_of(run)
    assert rookery.load(run).result["env_steps"] == -(-6_000 // ROUND) * ROUND


@pytest.mark.long
def test_a_run_that_mpirun_kills_resumes_from_the_last_checkpoint(slurm, tmp_path):
    """It hears of the end as its ranks do, and does not wait for them to save."""
    number, run = submit(
        slurm, tmp_path, *STEADY, "--launcher", "mpirun", "--checkpoint-steps", 512
    )
    slurm.until(lambda: list(run.glob("checkpoints/step_*")), "there is a checkpoint", 60)
    assert slurm.run("scancel", number).returncode == 0
    assert until_ended(slurm, number, run)["JobState"] == "CANCELLED"
    saved = rookery.load(run).saved.step
    assert 0 < saved < 6_000
    number = again(slurm, run)
    assert until_ended(slurm, number, run)["JobState"] == "COMPLETED", log_of(run)
    assert f"resuming at step {saved:,}" in log_of(run)
    assert rookery.load(run).result["env_steps"] == -(-6_000 // ROUND) * ROUND


def test_a_run_that_fails_fails_the_job_and_is_not_requeued(slurm, tmp_path):
    number, run = submit(slurm, tmp_path, "ppo", "NoSuch-v0", "--nodes", "2")
    job = until_ended(slurm, number, run)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "2:0", "0")
    assert "NoSuch-v0" in log_of(run)


def test_a_rejected_script_is_one_line_and_status_2(slurm, tmp_path):
    args = ["ppo", "CartPole-v1", "--partition", "nowhere", "--submit", "--runs-dir", tmp_path]
    done = slurm.run(*COMMAND, *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "sbatch rejected" in done.stderr
    assert "nowhere" in done.stderr
    assert slurm.run("squeue", "--noheader").stdout == ""
