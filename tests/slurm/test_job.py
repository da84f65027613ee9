"""What is asked of Slurm: checked before anything is written."""

from __future__ import annotations

import pytest

from rookery.errors import BadInput
from rookery.slurm.job import Job, seconds_of


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("10", 600),
        ("10:30", 630),
        ("1:00:05", 3605),
        ("2-3", 2 * 86_400 + 3 * 3_600),
        ("2-3:04", 2 * 86_400 + 3 * 3_600 + 4 * 60),
        ("1-0:00:01", 86_401),
        ("UNLIMITED", None),
    ],
)
def test_times_are_read_as_sbatch_reads_them(time, seconds):
    assert seconds_of(time) == seconds


def test_cpus_are_divided_among_ranks():
    assert Job(cpus_per_node=8).tasks == 8
    assert Job(cpus_per_node=8, gpus_per_node=2).tasks == 2
    assert Job(cpus_per_node=8, gpus_per_node=2, tasks_per_node=4).tasks == 4
    assert Job(kind="ray", cpus_per_node=8).tasks == 1


def test_a_heterogeneous_job_has_a_head_and_a_learner_beside_its_nodes():
    assert Job(kind="hetero", nodes=3).ray_nodes == 5
    assert Job(kind="ray", nodes=3).ray_nodes == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nodes": 0}, ["--nodes", "0"]),
        ({"cpus_per_node": 8, "tasks_per_node": 3}, ["--cpus-per-node 8", "--tasks-per-node 3"]),
        ({"kind": "ray", "tasks_per_node": 2}, ["--tasks-per-node", "--kind ray"]),
        ({"kind": "hetero", "launcher": "mpirun"}, ["--launcher", "--kind hetero"]),
        ({"kind": "ray", "learner_gpus": 1}, ["--learner-gpus", "hetero"]),
        ({"kind": "hetero", "gpus_per_node": 1}, ["--gpus-per-node 1", "--learner-gpus"]),
        ({"time": "2", "signal_seconds": 60}, ["--time 2", "--signal-seconds 60"]),
        ({"time": "soon"}, ["--time", '"soon"', "H:M:S"]),
        ({"signal_seconds": 5}, ["--signal-seconds", "5"]),
        ({"account": "a b"}, ["--account", '"a b"']),
        ({"partition": "-x"}, ["--partition", '"-x"']),
        ({"modules": ("cuda; rm",)}, ["--modules", "cuda; rm"]),
        ({"sbatch": ("nodes=3",)}, ["--sbatch nodes=3", "--nodes"]),
        ({"sbatch": ("mem=8G\n#SBATCH --x",)}, ["--sbatch", "mem=8G"]),
        ({"sbatch": ("--mem=8G",)}, ["--sbatch", "--mem=8G"]),
    ],
)
def test_contradictions_are_refused_by_name(fields, words):
    with pytest.raises(BadInput) as caught:
        Job(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_time_limit_that_leaves_time_is_taken():
    assert Job(time="2:01", signal_seconds=60).time == "2:01"
