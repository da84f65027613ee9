"""Join the group of ranks that mpirun, torchrun, srun or `launch` started together."""

from __future__ import annotations

import os
import socket
import sys
from typing import NamedTuple, NoReturn

import torch

from rookery.backends.ranks.slurm import address_of, node_of_rank_0
from rookery.errors import BadInput, RookeryError, missing_extra, require
from rookery.learning.reduce import Mpi, Reducer, Torch, mpi_installed


class RankPlace(NamedTuple):
    """Rank of this process, number of ranks, and the launcher that started them."""

    launcher: str
    rank: int
    world: int
    local_rank: int


def place() -> RankPlace | None:
    """Return this process's rank under mpirun, torchrun or srun; None if it was started alone."""
    for launcher, rank, world, local in (
        ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if rank in os.environ and world in os.environ:
            numbers = [int(os.environ.get(name, "0")) for name in (rank, world, local)]
            return RankPlace(launcher, *numbers) if launcher != "srun" or numbers[1] > 1 else None
    return None


def transport_for(transport: str, device: torch.device, launcher: str | None) -> str:
    """Return the transport of all-reduce; "auto" is NCCL on GPUs, MPI where usable, else gloo."""
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


def join(where: RankPlace, transport: str, device: torch.device) -> Reducer:
    """Return the reducer over the ranks that were started together."""
    chosen = transport_for(transport, device, where.launcher)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if chosen == "mpi":
        return Mpi()
    return Torch(chosen, where.rank, where.world, meeting_point(where))


def meeting_point(where: RankPlace) -> str:
    """Return the address at which the ranks of a torch.distributed group meet."""
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
    """Return a port that all ranks derive alike, below Linux's ports for outgoing connections."""
    return str(20_000 + number % 12_000)


def leave(error: RookeryError) -> NoReturn:
    """Print the error and exit at once, so that the launcher ends the other ranks.

    An orderly shutdown would wait for ranks that wait for this one.
    """
    print(f"rookery: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_status)


def on_this_host(reducer: Reducer) -> int:
    """Return the number of ranks on this machine."""
    host = socket.gethostname()
    return reducer.gather(host).count(host)
