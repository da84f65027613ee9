"""The text of batch scripts."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.errors import BadInput
from rookery.slurm.job import Job
from rookery.slurm.script import Work, batch_script, implied_settings

WORK = Work("ppo", "CartPole-v1", Path("/shared/runs/my run"), {"env_steps": "1_000"}, {})
JOBS = {
    "ranks": Job(nodes=2, cpus_per_node=4, tasks_per_node=2),
    "mpirun": Job(nodes=2, cpus_per_node=4, launcher="mpirun"),
    "ray": Job(kind="ray", nodes=3, cpus_per_node=4, gpus_per_node=1),
    "alone": Job(kind="ray"),
    "hetero": Job(
        kind="hetero", nodes=3, cpus_per_node=36, learner_cpus=8, learner_partition="gpu"
    ),
    "once": Job(requeue=False),
}


def directives(text: str) -> list[str]:
    """The options for sbatch, in order."""
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]


@pytest.mark.parametrize("name", JOBS)
def test_bash_parses_the_script(name):
    text = batch_script(JOBS[name], WORK)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, text.splitlines())) < 130
    # Slurm stops reading options at the first command.
    commands = [i for i, x in enumerate(text.splitlines()) if x and not x.startswith("#")]
    assert "#SBATCH" not in "\n".join(text.splitlines()[commands[0] :])


def test_options_for_slurm_are_in_the_script():
    job = Job(
        nodes=2,
        cpus_per_node=8,
        gpus_per_node=4,
        account="team",
        partition="gpu",
        qos="high",
        time="1-0:00:00",
        job_name="cart",
        signal_seconds=300,
        sbatch=("mem=8G", "exclusive", "comment=two words"),
    )
    assert directives(batch_script(job, WORK)) == [
        "--job-name=cart",
        '--output="my run-%j.log"',
        "--open-mode=append",
        "--signal=B:USR1@300",
        "--requeue",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=2",
        "--gpus-per-node=4",
        "--partition=gpu",
        "--account=team",
        "--qos=high",
        "--time=1-0:00:00",
        "--mem=8G",
        "--exclusive",
        '--comment="two words"',
    ]


def test_a_heterogeneous_job_has_three_components():
    text = "\n".join(directives(batch_script(JOBS["hetero"], WORK)))
    head, rollout, learner = (part.split() for part in text.split("hetjob"))
    assert {"--nodes=1", "--cpus-per-task=36"} <= set(head)
    assert {"--nodes=3", "--cpus-per-task=36"} <= set(rollout)
    assert {"--nodes=1", "--cpus-per-task=8", "--gpus-per-node=1", "--partition=gpu"} <= set(
        learner
    )
    assert not any("gpu" in word for word in [*head, *rollout])


def test_only_the_learner_node_has_the_resource_that_learners_ask_for():
    text = batch_script(JOBS["hetero"], WORK)
    steps = {line.split()[1]: below for line, below in pairs(text) if line.startswith("srun")}
    asks = {group: "--resource learner" in step for group, step in steps.items()}
    assert asks == {"--het-group=0": False, "--het-group=1": False, "--het-group=2": True}
    assert implied_settings(JOBS["hetero"], {})["ray.learner_resource"] == "learner"


def pairs(text: str) -> list[tuple[str, str]]:
    """Every line with the one below it."""
    lines = text.splitlines()
    return list(itertools.pairwise(lines))


def test_modules_and_the_virtual_environment_come_first():
    text = batch_script(Job(modules=("gcc/12", "cuda"), venv="/home/me/my venv"), WORK)
    loads = text.index("module load gcc/12 cuda")
    assert loads < text.index("source '/home/me/my venv/bin/activate'") < text.index("set -euo")
    assert f"python={shlex.quote(sys.executable)}" in batch_script(Job(), WORK)


def test_settings_are_quoted_for_the_shell():
    settings = {"net.parts": '{"a": "$(rm x)"}', "compile": True}
    text = batch_script(Job(), Work("ppo", "my.module:Env v0", WORK.run, settings, {}))
    assert """settings=('--net.parts={"a": "$(rm x)"}' --compile=true)""" in text
    assert "train ppo 'my.module:Env v0' --runs-dir=/shared/runs '--name=my run'" in text


@pytest.mark.parametrize("name", ["ray", "hetero"])
def test_the_token_of_a_cluster_is_in_no_command_and_no_script(name):
    first, second = (batch_script(JOBS[name], WORK) for _ in range(2))
    assert first == second, "a script holds nothing secret"
    assert "umask 077" in first
    assert "password" not in first
    assert not any("$token" in step for _, step in pairs(first) if "rookery.slurm.ray_node" in step)


def test_backends_follow_from_the_kind_of_job():
    assert implied_settings(Job(nodes=2), {}) == {"backend": "ranks"}
    assert implied_settings(Job(), {}) == {}, "one rank needs no others"
    assert implied_settings(JOBS["ray"], {}) == {"backend": "ray"}
    with pytest.raises(BadInput, match="--backend serial cannot be used with --kind ranks"):
        implied_settings(Job(nodes=2), {"backend": "serial"})


def test_the_command_prints_the_script(capsys, tmp_path):
    args = ["--nodes", "2", "--runs-dir", str(tmp_path), "--name", "a", "--algo.gamma", "0.9"]
    assert main(["slurm", "ppo", "CartPole-v1", *args, "--no-preset", "--sbatch", "mem=1G"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/bash\n# ppo on CartPole-v1, 2 nodes")
    assert "settings=(--algo.gamma=0.9 --backend=ranks)" in text
    assert "--name=a --no-preset=true" in text
    assert "--mem=1G" in directives(text)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_script(capsys, tmp_path):
    file = tmp_path / "new" / "job.sh"
    assert main(["slurm", "ppo", "CartPole-v1", "--script", str(file), "--name", "a"]) == 0
    assert file.read_text().startswith("#!/bin/bash")
    assert f"script: {file}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--algo.gama", "0.9"], ["--algo.gama", "algo.gamma"]),
        (["--algo.gamma", "2"], ["algo.gamma", "2"]),
        (["--node", "2"], ["--node", "--nodes"]),
        (["--kind", "mpi"], ["kind", "mpi"]),
        (["--nodes", "2", "--actors", "2"], ["actors=2", "--nodes"]),
        (["--resume", "runs/a"], ["--resume", "again"]),
        (["--ray-address", "a:1"], ["--ray-address", "its own cluster"]),
        (["--nodes", "2", "--backend", "threads"], ["--backend threads", "--kind ranks"]),
        (["--name", "a/b"], ["name", "a/b"]),
        (["--sbatch"], ["--sbatch", "needs a value"]),
    ],
)
def test_a_mistake_is_one_line_and_status_2(args, words, capsys, tmp_path):
    assert main(["slurm", "ppo", "CartPole-v1", "--runs-dir", str(tmp_path), *args]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert all(word in told.err for word in words), told.err
    assert list(tmp_path.iterdir()) == []


def test_submitting_without_slurm_says_where_to_submit(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    args = ["--runs-dir", str(tmp_path / "runs"), "--name", "a", "--submit"]
    assert main(["slurm", "ppo", "CartPole-v1", *args]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "sbatch not found" in told
    assert str(tmp_path / "runs" / "a.sbatch") in told
