"""A node of a job's Ray cluster, from its start to its end without remains.

python -m rookery.slurm.ray_node ADDRESS:PORT [--head] [--cpus N] [--gpus N] [--resource NAME]
    [--seconds S]

Runs until SIGUSR1, which srun passes on; it would answer SIGTERM with SIGKILL. When Slurm itself
ends the job it sends SIGTERM to every process at once: the node then stays until the training has
saved.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.backends.ranks.launch import free_port
from rookery.backends.ray.connect import require_ray
from rookery.errors import RookeryError, require
from rookery.fields import flags_of, from_dict, parse_flags
from rookery.slurm.head_address import listens, own_address
from rookery.slurm.offspring import adopt_orphans, end_offspring

KEY = "RAY_AUTH_TOKEN_PATH"
"""Environment variable: the cluster's key, which the script takes away when training is over."""
SAVE_S = 20.0
"""How long the training may take to save, of the 30 s that Slurm gives by default."""
ENDS = (signal.SIGUSR1, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the node is to the cluster."""

    head: bool = False
    """Whether the cluster begins here."""
    cpus: int = 1
    """CPUs that Ray may deal out."""
    gpus: int = 0
    """GPUs that Ray may deal out."""
    resource: str | None = None
    """A resource of this name makes the node known for what it is."""
    seconds: float = 300
    """How long Ray is started again if it does not start."""


def main(args: Sequence[str]) -> int:
    """Be a node; 0 if it was asked to end."""
    given, names = parse_flags(args, flags_of(Options))
    require_ray("a Ray cluster")
    require(len(names) == 1, "name the address of the head, as ADDRESS:PORT")
    options = from_dict(Options, given)
    # Here and short: Ray's sockets stand in this folder, and a socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rookery-", dir="/tmp"))
    asked: list[int] = []
    for number in ENDS:
        signal.signal(number, lambda got, frame: asked.append(got))
    adopt_orphans()
    try:
        return stay(names[0], folder, options, asked)
    finally:
        end_offspring()
        shutil.rmtree(folder, ignore_errors=True)


def stay(address: str, folder: Path, options: Options, asked: Sequence[int]) -> int:
    """Run Ray until a signal is in `asked`; 1 if it ends by itself.

    While the cluster comes up it is started again: Ray's own patience with a head that is still
    starting, and with a slow machine, is short.
    """
    deadline = time.monotonic() + options.seconds
    log = folder / "start.log"
    while not asked:
        if not options.head and not listens(address) and time.monotonic() < deadline:
            time.sleep(0.5)
            continue
        ray = start(command(address, folder, options), log)
        while not asked and ray.poll() is None:
            time.sleep(0.2)
        if asked:
            let_it_save(asked)
        elif time.monotonic() > deadline:
            print(f"rookery: {lost(ray.poll(), log)}", file=sys.stderr)
            return 1
        end_offspring()
        ray.wait()
    return 0


def let_it_save(asked: Sequence[int]) -> None:
    """Stay as long as the training may need the cluster."""
    deadline = time.monotonic() + SAVE_S
    while signal.SIGUSR1 not in asked and time.monotonic() < deadline:
        if not os.path.exists(os.environ.get(KEY, "")):
            return
        time.sleep(0.2)


def command(address: str, folder: Path, options: Options) -> list[str]:
    """How Ray is started: on ports of its own, so that several jobs can share a node."""
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


def start(words: list[str], log: Path) -> subprocess.Popen:
    """Ray, deaf to the signals that end this program: Slurm sends them to every process."""
    with log.open("w") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDS),
        )


def lost(status: int | None, log: Path) -> str:
    """Why Ray ended, in a line."""
    lines = log.read_text(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"Ray on {os.environ.get('SLURMD_NODENAME', 'this node')} ended, status {status}: {said}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
