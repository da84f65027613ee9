"""Start ranks on this machine and wait for them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from rookery.errors import BadInput, RookeryError, missing_extra
from rookery.processes import STOP_SIGNALS, ProcessTree, handling_signals
from rookery.runs.files import read_json, write_json
from rookery.runs.run import Run

CONSOLE = "ROOKERY_CONSOLE"
"""Environment variable: the terminal on which rank 0 draws its progress."""
FAILURE = "failure.json"
"""File in the run's folder with the error of the first rank that failed."""
MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Environment variables without which Open MPI refuses to run as root, as in a container."""


def launch(
    run: Run,
    count: int,
    transport: str,
    threads: int,
    resume: bool,
    console: TextIO,
    callbacks: Sequence[str] = (),
) -> None:
    """Start `count` ranks on this machine and wait for them; raise RookeryError if one fails.

    Ctrl-C or SIGTERM asks them to save a checkpoint and end; a second Ctrl-C kills them.
    """
    command = [sys.executable, "-m", "rookery.backends.ranks.process", str(run.path)]
    command += ["--resume"] if resume else []
    command += callbacks
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    output = None
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        output = console.fileno()
    if output is not None and os.isatty(output):
        env[CONSOLE] = os.ttyname(output)
    (run.path / FAILURE).unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as errors:
        if transport == "mpi":
            commands = [(mpirun(count) + command, env | MPI_AS_ROOT)]
        else:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            env["WORLD_SIZE"] = str(count)
            commands = [
                (command, env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
                for rank in range(count)
            ]
        trees = [
            ProcessTree(words, env=own, stdout=output, stderr=errors) for words, own in commands
        ]

        def stop(number: int, frame: FrameType | None) -> None:
            if run.stop_path.exists() and number == signal.SIGINT:
                for tree in trees:
                    tree.kill()
            run.stop_path.touch()

        with handling_signals(STOP_SIGNALS, stop):
            statuses = wait_for_ranks(trees)
        raise_failure(run, statuses, errors, resume)


def mpirun(count: int) -> list[str]:
    """Return the command that starts `count` ranks, by the mpirun beside the interpreter if any."""
    beside = Path(sys.executable).with_name("mpirun")
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        raise missing_extra("learner.transport=mpi", "mpi")
    return [program, "-n", str(count), "--oversubscribe", "--bind-to", "none"]


def wait_for_ranks(trees: Sequence[ProcessTree]) -> list[int]:
    """Return the exit statuses of all ranks. When one fails the others are killed: they would wait
    for its gradients forever."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(trees):
        for rank, tree in enumerate(trees):
            if rank not in statuses and (status := tree.wait(0.1)) is not None:
                statuses[rank] = status
                if status:
                    for other in trees:
                        other.kill()
    return [statuses[rank] for rank in range(len(trees))]


def report_failure(run_path: Path, error: RookeryError) -> None:
    """Write why this rank failed for `launch` to raise, unless another rank failed before."""
    if not (run_path / FAILURE).exists():
        failure = {"message": str(error), "status": error.exit_status, "details": error.details}
        # Settings that are refused are BadInput; other errors come up in training.
        write_json(run_path / FAILURE, failure | {"had_begun": not isinstance(error, BadInput)})


def raise_failure(run: Run, statuses: list[int], errors: IO[str], resumed: bool) -> None:
    """Raise the error that a rank has written, or a general one if a rank just died."""
    path = run.path / FAILURE
    if path.exists():
        failure = read_json(path)
        path.unlink()
        if failure["had_begun"]:
            run.write_failure(failure["message"], failure["details"])
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
    """Return a port of the address on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
