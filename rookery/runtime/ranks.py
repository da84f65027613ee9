"""One actor and one learner in every rank: joining ranks that were started, and starting them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TextIO

import torch

from rookery.errors import BadInput, RookeryError, missing_extra, require
from rookery.learning.reduce import Mpi, Reducer, Torch, mpi_installed
from rookery.runs.files import read_json, write_json
from rookery.runs.run import Run

CONSOLE = "ROOKERY_CONSOLE"
"""Environment variable: the terminal that a started rank 0 draws its progress on."""
FAILURE = "failure.json"
"""File in the run's folder by which a started rank tells why it ended."""


class Place(NamedTuple):
    """Where this process stands among the ranks that were started with it."""

    launcher: str
    rank: int
    world: int
    local_rank: int


def place() -> Place | None:
    """This process's place under mpirun, torchrun or srun; None if it was started alone."""
    for launcher, rank, world, local in (
        ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if rank in os.environ and world in os.environ:
            numbers = [int(os.environ.get(name, "0")) for name in (rank, world, local)]
            return Place(launcher, *numbers) if launcher != "srun" or numbers[1] > 1 else None
    return None


def transport_for(transport: str, device: torch.device, launcher: str | None) -> str:
    """What carries the sums: as asked, or NCCL between GPUs, MPI where it runs, else gloo."""
    if transport == "auto":
        if device.type == "cuda":
            return "nccl"
        return "mpi" if mpi_installed() and launcher in (None, "mpirun") else "gloo"
    if transport == "mpi":
        if not mpi_installed():
            raise missing_extra("learner.transport=mpi", "mpi")
        require(
            launcher in (None, "mpirun"),
            f"learner.transport=mpi needs mpirun, these ranks were started by {launcher};"
            " use --learner.transport gloo",
        )
    if transport == "nccl":
        require(device.type == "cuda", "learner.transport=nccl needs --device cuda")
    return transport


def join(where: Place, transport: str, device: torch.device) -> Reducer:
    """The group of the ranks that were started together."""
    chosen = transport_for(transport, device, where.launcher)
    if chosen == "mpi":
        return Mpi()
    return Torch(chosen, where.rank, where.world, meeting_point(where))


def meeting_point(where: Place) -> str:
    """The address at which the ranks of a torch.distributed group find each other."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if where.launcher == "srun" and address is None:
        address = first_slurm_node()
        port = str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20_000)
    if where.launcher == "mpirun" and address is None:
        require(
            where.world == int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", where.world)),
            "learner.transport=gloo over several nodes needs MASTER_ADDR and MASTER_PORT",
        )
        address, port = "127.0.0.1", str(20_000 + os.getppid() % 20_000)
    if address is None or port is None:
        raise BadInput("ranks: MASTER_ADDR and MASTER_PORT are not set; start with torchrun")
    return f"tcp://{address}:{port}"


def first_slurm_node() -> str:
    """The node of rank 0, or the one srun was called on where its name means nothing."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "localhost")
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes.split(",")[0] + "]").rstrip("]")
    try:
        return socket.gethostbyname(first)
    except OSError:
        return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")


def launch(
    run: Run, count: int, transport: str, threads: int, resume: bool, console: TextIO
) -> None:
    """Start `count` ranks on this machine and wait for them; a failure of theirs is raised here.

    Ctrl-C asks them to save and leave, as it does a run in one process.
    """
    arguments = [sys.executable, "-m", "rookery.runtime.worker", str(run.path)]
    arguments += ["--resume"] if resume else []
    shared = os.environ | {"OMP_NUM_THREADS": str(threads)}
    output = file_number(console)
    if output is not None and os.isatty(output):
        shared[CONSOLE] = os.ttyname(output)
    (run.path / FAILURE).unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as errors:
        if transport == "mpi":
            processes = [start(mpirun(count) + arguments, shared | MPI_AS_ROOT, output, errors)]
        else:
            group = shared | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            group["WORLD_SIZE"] = str(count)
            processes = [
                start(arguments, group | {"RANK": str(i), "LOCAL_RANK": str(i)}, output, errors)
                for i in range(count)
            ]
        with passing_on_interrupts(processes):
            statuses = wait(processes)
        raise_failure(run, statuses, errors)


MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(count: int) -> list[str]:
    """The command that starts `count` ranks here, by the interpreter's own mpirun if it has one."""
    beside = Path(sys.executable).with_name("mpirun")
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        raise missing_extra("learner.transport=mpi", "mpi")
    return [program, "-n", str(count), "--oversubscribe", "--bind-to", "none"]


def file_number(stream: TextIO) -> int | None:
    """The stream's file descriptor; None for one that only Python knows."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def start(
    command: list[str], environment: dict[str, str], output: int | None, errors: IO[str]
) -> subprocess.Popen:
    """A process in a session of its own, so that the terminal's Ctrl-C reaches only this one."""
    return subprocess.Popen(
        command,
        env=environment,
        stdout=output,
        stderr=errors,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def wait(processes: list[subprocess.Popen]) -> list[int]:
    """Exit statuses; when a rank fails the others, who would wait for it for ever, are ended."""
    waiting = list(processes)
    while waiting:
        for process in list(waiting):
            try:
                status = process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            waiting.remove(process)
            if status:
                for other in waiting:
                    other.kill()
    return [process.returncode for process in processes]


@contextmanager
def passing_on_interrupts(processes: list[subprocess.Popen]) -> Iterator[None]:
    """Hand Ctrl-C and termination to the ranks; mpirun passes this signal on to its own."""

    def pass_on(number: int, frame: object) -> None:
        for process in processes:
            process.send_signal(signal.SIGUSR1)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_failure(run_path: Path, error: RookeryError) -> None:
    """Leave word for the process that started this rank; the first to fail is the cause."""
    if not (run_path / FAILURE).exists():
        told = {"message": str(error), "status": error.exit_status, "details": error.details}
        write_json(run_path / FAILURE, told)


def raise_failure(run: Run, statuses: list[int], errors: IO[str]) -> None:
    """Raise what a rank told, or what is known of one that ended without a word."""
    told = run.path / FAILURE
    if told.exists():
        failure = read_json(told)
        told.unlink()
        error = RookeryError(failure["message"], failure["details"])
        error.exit_status = failure["status"]
        raise error
    if any(statuses):
        errors.seek(0)
        run.log("ranks ended unexpectedly\n" + errors.read())
        raise RookeryError(
            f"a rank ended with status {max(map(abs, statuses))}; see {run.log_path}"
        )


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
