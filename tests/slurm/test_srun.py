"""Ranks that a real Slurm starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import rookery

TRAIN = [sys.executable, "-m", "rookery", "train", "ppo", "CartPole-v1", "--no-preset"]
TRAIN += ["--envs", "4", "--algo.rollout_steps", "32", "--algo.minibatches", "2"]
TRAIN += ["--algo.epochs", "2", "--threads", "1", "--name", "s"]
SRUN = ["srun", "-N3", "-n3"]

STANDING = """
from rookery.backends.ranks.join import meeting_point
from rookery.processes import rank_place
where = rank_place()
print("place", where and where[:3], where and meeting_point(where))
"""


def test_srun_joins_three_nodes_to_one_run(slurm, tmp_path):
    done = slurm.run(*SRUN, *TRAIN, "--env-steps", "3_000", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    run = rookery.load(tmp_path / "s")
    assert run.result["status"] == "finished"
    assert (run.result["ranks"], run.result["transport"]) == (3, "gloo")
    assert run.progress()[-1]["actors_healthy"] == 3
    # 3 ranks x 4 environments x 32 rows a round: what all ranks did is counted, resets are not.
    rounds = run.result["updates"] / 4
    assert 0.9 * rounds * 384 < run.result["env_steps"] <= rounds * 384
    assert set(run.saved.tensors["random"]) == {
        f"{part}.{rank}" for part in ("actor", "memory") for rank in range(3)
    }


def trains(run: Path) -> bool:
    """Whether the run's table has a row below its heading."""
    table = run / "progress.csv"
    return table.exists() and table.read_text().count("\n") > 1


def test_scancel_with_term_saves_and_interrupts(slurm, tmp_path):
    command = [*SRUN, "--job-name=endless", *TRAIN, "--env-steps", "100_000_000"]
    with (tmp_path / "output").open("w") as output:
        srun = subprocess.Popen(
            [*command, "--runs-dir", str(tmp_path)], env=slurm.env, stdout=output, stderr=output
        )
        try:
            slurm.until(lambda: srun.poll() is not None or trains(tmp_path / "s"), "it trains")
            assert srun.poll() is None, (tmp_path / "output").read_text()
            assert not list((tmp_path / "s" / "checkpoints").glob("*"))
            job = slurm.run("squeue", "--noheader", "--name=endless", "--format=%i").stdout.strip()
            assert slurm.run("scancel", "--signal=TERM", f"{job}.0").returncode == 0
            status = srun.wait(timeout=30)
        finally:
            slurm.run("scancel", "--name=endless")
            srun.kill()
            srun.wait()
    assert status == 130, (tmp_path / "output").read_text()
    result = json.loads((tmp_path / "s" / "result.json").read_text())
    assert (result["status"], result["ranks"]) == ("interrupted", 3)
    assert rookery.load(tmp_path / "s").saved.step == result["env_steps"] > 0


def standings(text: str) -> list[str]:
    """What the processes told of where they stand."""
    return sorted(line for line in text.splitlines() if line.startswith("place"))


def test_a_batch_script_is_no_rank_and_its_steps_meet_on_their_first_node(slurm, tmp_path):
    program, script, said = (tmp_path / name for name in ("standing.py", "batch.sh", "said"))
    program.write_text(STANDING)
    ask = f"{sys.executable} {program}"
    script.write_text(f"#!/bin/sh\n{ask}\nsrun -N2 -n2 --relative=1 {ask}\n")
    done = slurm.run("sbatch", "--parsable", "-N3", "-n3", f"--output={said}", script)
    assert done.returncode == 0, done.stderr
    # Not with --wait, which looks only now and then.
    slurm.until(lambda: slurm.job(done.stdout.strip())["JobState"] == "COMPLETED", "it is over")
    first, second, alone = standings(said.read_text())
    assert alone == "place None None"
    assert first.startswith(f"place ('srun', 0, 2) tcp://{slurm.nodes['n2']}:")
    assert second == first.replace("0, 2", "1, 2")


def test_groups_of_a_heterogeneous_job_meet_on_the_first(slurm):
    ask = [sys.executable, "-c", STANDING]
    done = slurm.run("srun", "-w", "n3", "-n1", *ask, ":", "-w", "n1", "-n1", *ask)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = standings(done.stdout)
    assert first.startswith(f"place ('srun', 0, 2) tcp://{slurm.nodes['n3']}:")
    assert second == first.replace("0, 2", "1, 2")
