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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, TextIO

import torch

from rookery.errors import BadInput, EnvironmentFailure, RookeryError, missing_extra, require
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
        require(device.type == "cpu", "learner.transport=mpi needs --device cpu; use nccl")
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
    if where.launcher == "srun":
        job, step = (int(os.environ.get(f"SLURM_{of}_ID", "0")) for of in ("JOB", "STEP"))
        address = address or address_of(slurm_node_of_rank_0())
        port = port or agreed_port(101 * job + step)
    if where.launcher == "mpirun" and address is None:
        require(
            where.world == int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", where.world)),
            "learner.transport=gloo over several nodes needs MASTER_ADDR and MASTER_PORT",
        )
        address, port = "127.0.0.1", agreed_port(os.getppid())
    if address is None or port is None:
        raise BadInput("ranks: MASTER_ADDR and MASTER_PORT are not set; start with torchrun")
    return f"tcp://{address}:{port}"


def agreed_port(number: int) -> str:
    """A port that ranks choose alike, below those that Linux lends to outgoing connections."""
    return str(20_000 + number % 12_000)


def slurm_node_of_rank_0() -> str:
    """The first node of the step; in a heterogeneous one, the first of its first group."""
    require(
        os.environ.get("SLURM_DISTRIBUTION") != "arbitrary",
        "ranks: srun -m arbitrary does not tell where rank 0 is; set MASTER_ADDR to its node",
    )
    step = slurm_nodes(os.environ.get("SLURM_STEP_NODELIST", "localhost"))
    groups = [
        os.environ.get(f"SLURM_JOB_NODELIST_{kind}_GROUP_{group}", "")
        for group in range(int(os.environ.get("SLURM_HET_SIZE", "0")))
        for kind in ("HET", "PACK")
    ]
    grouped = [node for names in groups for node in slurm_nodes(names) if node in step]
    return (grouped or step)[0]


def slurm_nodes(names: str) -> list[str]:
    """The nodes that Slurm writes as "a[07-09,12],b"."""
    nodes = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        head, _, rest = item.partition("[")
        spans, _, tail = rest.partition("]")
        for span in spans.split(","):
            low, _, high = span.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else ()
            middles = [f"{number:0{len(low)}}" for number in numbers] or [""]
            nodes += [
                head + middle + end for middle in middles for end in slurm_nodes(tail) or [""]
            ]
    return nodes


def address_of(node: str) -> str:
    """The address of a node's name, or the one Slurm knows for it, or where that cannot be asked
    the address srun was called on."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        launched_on = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        return slurm_address(node) or launched_on


def slurm_address(node: str) -> str | None:
    """The address by which Slurm reaches a node; None if it does not tell."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", told)
    return found and found[1]


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
    run.stop_path.unlink(missing_ok=True)
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
        with passing_on_interrupts(run, processes):
            statuses = wait(processes)
        raise_failure(run, statuses, errors, resume)


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
        preexec_fn=before_start,
    )


def before_start() -> None:
    """In the process to come: end when the parent does."""
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
def passing_on_interrupts(run: Run, processes: list[subprocess.Popen]) -> Iterator[None]:
    """Ask the run to stop on Ctrl-C or termination; a second Ctrl-C ends the ranks at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        if run.stop_path.exists() and number == signal.SIGINT:
            for process in processes:
                process.kill()
        run.stop_path.touch()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_failure(run_path: Path, error: RookeryError) -> None:
    """Leave word for the process that started this rank; the first to fail is the cause."""
    if not (run_path / FAILURE).exists():
        told = {"message": str(error), "status": error.exit_status, "details": error.details}
        write_json(run_path / FAILURE, told | {"began": not_input(error)})


def not_input(error: RookeryError) -> bool:
    """Whether the run had begun: an error other than of what it was asked to do."""
    return not isinstance(error, BadInput) or isinstance(error, EnvironmentFailure)


def leave(error: RookeryError) -> NoReturn:
    """End a rank that others started: tell why, and go at once, so that its launcher ends the
    others; leaving in order would wait for ranks that wait for this one."""
    print(f"rookery: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_status)


def on_this_host(reducer: Reducer) -> int:
    """How many ranks share this machine."""
    host = socket.gethostname()
    return reducer.gather(host).count(host)


def raise_failure(run: Run, statuses: list[int], errors: IO[str], resumed: bool) -> None:
    """Raise what a rank told, or what is known of one that ended without a word."""
    told = run.path / FAILURE
    if told.exists():
        failure = read_json(told)
        told.unlink()
        if failure["began"]:
            run.note_failure(failure["message"], failure["details"])
        elif not resumed:
            run.remove()
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
