"""A node of a job's Ray cluster, which leaves neither processes nor files behind.

python -m rookery.slurm.ray_node ADDRESS:PORT [--head] [--cpus N] [--gpus N] [--resource NAME]
    [--seconds S]

Runs until SIGUSR1, which srun passes on; srun would answer SIGTERM with SIGKILL. When Slurm itself
ends the job it sends SIGTERM to every process at once: the node then stays up until the training
has saved a checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.backends.ranks.launch import free_port
from rookery.backends.ray.cluster import require_ray
from rookery.errors import RookeryError, require
from rookery.fields import flags_of, from_dict, parse_flags
from rookery.processes import ProcessTree, handling_signals
from rookery.slurm.head_address import is_listening, own_address

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
"""Environment variable: the file with the cluster's token; the script deletes it after training."""
SAVE_S = 20.0
"""Seconds that the training may take to save, of the 30 s that Slurm gives by default."""
END_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options of the program."""

    head: bool = False
    """Start a cluster, of which this node is the head."""
    cpus: int = 1
    """CPUs that Ray may use."""
    gpus: int = 0
    """GPUs that Ray may use."""
    resource: str | None = None
    """Name of a custom Ray resource that this node has."""
    seconds: float = 300
    """Time within which Ray is started again if it fails to start."""


def main(args: Sequence[str]) -> int:
    """Run the node; return 0 if it ended because it was asked to."""
    given, names = parse_flags(args, flags_of(NodeOptions))
    require_ray("a Ray cluster")
    require(len(names) == 1, "expected the address of the head, as ADDRESS:PORT")
    options = from_dict(NodeOptions, given)
    # In /tmp because Ray puts its sockets there, and a socket's path has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rookery-", dir="/tmp"))
    received: list[int] = []
    with handling_signals(END_SIGNALS, lambda number, frame: received.append(number)):
        try:
            return run_node(names[0], folder, options, received)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_node(address: str, folder: Path, options: NodeOptions, received: Sequence[int]) -> int:
    """Run Ray until a signal is in `received`; return 1 if Ray ends by itself.

    While the cluster comes up Ray is started again when it fails: its own timeouts for a head that
    is still starting, or for a slow machine, are short.
    """
    deadline = time.monotonic() + options.seconds
    log = folder / "start.log"
    while not received:
        if not options.head and not is_listening(address) and time.monotonic() < deadline:
            time.sleep(0.5)
            continue
        with log.open("w") as output:
            # Slurm signals every process of the job; Ray is to end after the training has saved.
            ray = ProcessTree(
                ray_command(address, folder, options),
                stdout=output,
                stderr=output,
                blocked_signals=END_SIGNALS,
                adopt_orphans=True,
            )
        try:
            while not received and ray.wait(0.2) is None:
                pass
            if received:
                wait_for_save(received)
            elif time.monotonic() > deadline:
                node = os.environ.get("SLURMD_NODENAME", "this node")
                lines = log.read_text(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
                end = f"Ray on {node} ended, status {ray.wait(0)}: {last}"
                print(f"rookery: {end}", file=sys.stderr)
                return 1
        finally:
            ray.end(grace_s=0)
    return 0


def wait_for_save(received: Sequence[int]) -> None:
    """Return when the training needs the cluster no more."""
    deadline, token = time.monotonic() + SAVE_S, os.environ.get(TOKEN_PATH, "")
    while signal.SIGUSR1 not in received and time.monotonic() < deadline and os.path.exists(token):
        time.sleep(0.2)


def ray_command(address: str, folder: Path, options: NodeOptions) -> list[str]:
    """Return the command that starts Ray, on free ports so that several jobs can share a node."""
    here = own_address()
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    words += ["--disable-usage-stats", "--log-style=record", "--log-color=false"]
    words += [f"--node-ip-address={here}", f"--temp-dir={folder}"]
    words += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    words += [f"--num-cpus={options.cpus}", f"--num-gpus={options.gpus}"]
    if options.resource is not None:
        words.append(f'--resources={{"{options.resource}": 1}}')
    if not options.head:
        return [*words, f"--address={address}"]
    port = address.rpartition(":")[2]
    client = f"--ray-client-server-port={free_port(here)}"
    return [*words, "--head", f"--port={port}", "--include-dashboard=false", client]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
