"""Starting ranks on this machine, and seeing them to their end."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from rookery.errors import BadInput, EnvironmentFailure, RookeryError, missing_extra
from rookery.processes import ENDS, answering
from rookery.runs.files import read_json, write_json
from rookery.runs.run import Run

CONSOLE = "ROOKERY_CONSOLE"
"""Environment variable: the terminal that a started rank 0 draws its progress on."""
FAILURE = "failure.json"
"""File in the run's folder by which a started rank tells why it ended."""
MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Environment without which Open MPI refuses to run as root, as in a container."""


def launch(
    run: Run, count: int, transport: str, threads: int, resume: bool, console: TextIO
) -> None:
    """Start `count` ranks on this machine and wait for them; a failure of theirs is raised here.

    Ctrl-C asks them to save and leave, as it does a run in one process.
    """
    arguments = [sys.executable, "-m", "rookery.backends.ranks.process", str(run.path)]
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
        with passing_on_interrupts(run, processes):
            statuses = wait(processes)
        raise_failure(run, statuses, errors, resume)


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

    def ask(number: int, frame: object) -> None:
        if run.stop_path.exists() and number == signal.SIGINT:
            for process in processes:
                process.kill()
        run.stop_path.touch()

    with answering(ENDS, ask):
        yield


def tell_failure(run_path: Path, error: RookeryError) -> None:
    """Leave word for the process that started this rank; the first to fail is the cause."""
    if not (run_path / FAILURE).exists():
        told = {"message": str(error), "status": error.exit_status, "details": error.details}
        write_json(run_path / FAILURE, told | {"began": not_input(error)})


def not_input(error: RookeryError) -> bool:
    """Whether the run had begun: an error other than of what it was asked to do."""
    return not isinstance(error, BadInput) or isinstance(error, EnvironmentFailure)


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


def free_port(address: str = "127.0.0.1") -> int:
    """A port of an address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
