"""Nodes, limits and software of a Slurm job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rookery.errors import BadInput, require
from rookery.fields import flag_name, require_least

EARLY_S = 60
"""Seconds by which Slurm may send a signal too early."""
SCRIPT_OPTIONS = {
    "job_name": "--job-name",
    "nodes": "--nodes",
    "ntasks": "--tasks-per-node",
    "ntasks_per_node": "--tasks-per-node",
    "cpus_per_task": "--cpus-per-node",
    "gpus_per_node": "--gpus-per-node",
    "account": "--account",
    "partition": "--partition",
    "qos": "--qos",
    "time": "--time",
    "signal": "--signal-seconds",
    "requeue": "--requeue",
    "no_requeue": "--no-requeue",
    "open_mode": "nothing: a requeued job appends to its log",
}
"""Options of sbatch that the script sets itself, and the options to use instead."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Options of a job."""

    kind: Literal["ranks", "ray", "hetero"] = "ranks"
    """Processes on the nodes: ranks; a Ray cluster (ray); or a heterogeneous job with a Ray cluster
    of a head, rollout nodes and a learner node (hetero)."""
    nodes: int = 1
    """Number of nodes; with hetero, of rollout nodes, beside a head and a learner node."""
    cpus_per_node: int = 1
    """CPUs on each node."""
    gpus_per_node: int = 0
    """GPUs on each node; with hetero use learner-gpus."""
    tasks_per_node: int | None = None
    """Ranks on each node; none: one per GPU, or without GPUs one per CPU."""
    launcher: Literal["srun", "mpirun"] | None = None
    """Program that starts the ranks; none: srun."""
    learner_cpus: int | None = None
    """CPUs of the learner node; none: as on the others."""
    learner_gpus: int | None = None
    """GPUs of the learner node; none: 1."""
    learner_partition: str | None = None
    """Partition of the learner node; none: that of the others."""
    ready_seconds: int = 300
    """Seconds within which the nodes of a Ray cluster must join."""
    account: str | None = None
    """Account that the job is charged to."""
    partition: str | None = None
    """Partition of the nodes; none: Slurm's default."""
    qos: str | None = None
    """Quality of service."""
    time: str | None = None
    """Time limit as sbatch takes it: minutes, H:M:S, D-H:M:S; none: the partition's."""
    job_name: str | None = None
    """Name of the job; none: the name of the run."""
    modules: tuple[str, ...] = ()
    """Modules to load, as in a,b."""
    venv: str | None = None
    """Virtual environment to activate; none: use the Python that writes the script."""
    signal_seconds: int = 120
    """Seconds before the time limit at which the run is asked to save and end."""
    requeue: bool = True
    """Requeue the job then, and resume the run when it starts again."""
    sbatch: tuple[str, ...] = ()
    """Any other option of sbatch, as in mem=8G or exclusive; may be given several times."""

    def __post_init__(self) -> None:
        counts = ("nodes", "cpus_per_node", "tasks_per_node", "learner_cpus", "ready_seconds")
        require_least(self, 1, counts, flag_name)
        require_least(self, 0, ("gpus_per_node", "learner_gpus"), flag_name)
        require(
            10 <= self.signal_seconds <= 65_535,
            f"--signal-seconds must lie in [10, 65535], got {self.signal_seconds}",
        )
        self.check_kind()
        limit = None if self.time is None else seconds_of(self.time)
        require(
            limit is None or limit > self.signal_seconds + EARLY_S,
            f"--time {self.time} leaves no time to train: Slurm asks the run to stop"
            f" --signal-seconds {self.signal_seconds} before, and up to {EARLY_S} s earlier",
        )
        for name in ("account", "partition", "qos", "job_name", "learner_partition"):
            check_word(flag_name(name), getattr(self, name))
        for module in self.modules:
            check_word("--modules", module)
        for option in self.sbatch:
            check_option(option)

    def check_kind(self) -> None:
        """Raise BadInput for options without effect on this kind of job."""
        for kinds, names in (
            (("ranks",), ("tasks_per_node", "launcher")),
            (("hetero",), ("learner_cpus", "learner_gpus", "learner_partition")),
        ):
            for name in names:
                require(
                    self.kind in kinds or getattr(self, name) is None,
                    f"{flag_name(name)} has no effect with --kind {self.kind}, only {kinds[0]};"
                    " remove it",
                )
        require(
            self.kind != "hetero" or self.gpus_per_node == 0,
            f"--gpus-per-node {self.gpus_per_node} with --kind hetero: its GPUs are on the"
            " learner node; use --learner-gpus",
        )
        require(
            self.cpus_per_node % self.tasks == 0,
            f"--cpus-per-node {self.cpus_per_node} cannot be divided among --tasks-per-node"
            f" {self.tasks}; use a multiple",
        )

    @property
    def tasks(self) -> int:
        if self.kind != "ranks":
            return 1
        return self.tasks_per_node or self.gpus_per_node or self.cpus_per_node

    @property
    def ray_nodes(self) -> int:
        return self.nodes + 2 if self.kind == "hetero" else self.nodes


def check_word(name: str, value: str | None) -> None:
    """Raise BadInput for a value that the shell or sbatch would not read as one word."""
    usable = value is None or re.fullmatch(r"[\w.+@/%][\w.,+@/:%=-]*", value)
    require(usable, f'{name}: "{value}" is not a name')


def check_option(option: str) -> None:
    """Raise BadInput for what is not an option of sbatch, or is set by the script itself."""
    name, _, value = option.partition("=")
    require(
        re.fullmatch(r"[a-z][a-z-]*", name) and not re.search(r'["\\\n]', value),
        f'--sbatch: expected an option of sbatch such as mem=8G, got "{option}"',
    )
    own = SCRIPT_OPTIONS.get(name.replace("-", "_"))
    require(own is None, f"--sbatch {option}: the script sets {name} itself; use {own}")


def seconds_of(time: str) -> float | None:
    """Return the seconds of a time limit; None for no limit."""
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        raise BadInput(
            f'--time: expected minutes, H:M:S or D-H:M:S, got "{time}"; sbatch takes these'
        )
    days, *parts = match.groups("0")
    if match[1] is None and match[4] is None:  # M, M:S; others are H:M:S, D-H, D-H:M, D-H:M:S
        parts = ["0", *parts[:2]]
    hours, minutes, seconds = map(int, parts)
    return 86_400 * int(days) + 3_600 * hours + 60 * minutes + seconds
