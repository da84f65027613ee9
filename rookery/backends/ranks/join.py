"""One actor and one learner in every rank: joining the ranks that were started together."""

from __future__ import annotations

import os
import socket
import sys
from typing import NamedTuple, NoReturn

import torch

from rookery.backends.ranks.slurm import address_of, node_of_rank_0
from rookery.errors import BadInput, RookeryError, missing_extra, require
from rookery.learning.reduce import Mpi, Reducer, Torch, mpi_installed


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
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if chosen == "mpi":
        return Mpi()
    return Torch(chosen, where.rank, where.world, meeting_point(where))


def meeting_point(where: Place) -> str:
    """The address at which the ranks of a torch.distributed group find each other."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if where.launcher == "srun":
        job, step = (int(os.environ.get(f"SLURM_{of}_ID", "0")) for of in ("JOB", "STEP"))
        address = address or address_of(node_of_rank_0())
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


def leave(error: RookeryError) -> NoReturn:
    """End a rank that others started: tell why, and go at once, so that its launcher ends the
    others; leaving in order would wait for ranks that wait for this one."""
    print(f"rookery: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_status)


def on_this_host(reducer: Reducer) -> int:
    """How many ranks share this machine."""
    host = socket.gethostname()
    return reducer.gather(host).count(host)
