"""Join ranks that were started together, over MPI, gloo or NCCL."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

import torch

from rookery.backends.ranks.slurm import address_of, node_of_rank_0
from rookery.errors import BadInput, RookeryError, missing_extra, require
from rookery.learning.reduce import Mpi, Reducer, Torch
from rookery.processes import RankPlace


def transport_for(transport: str, device: torch.device, launcher: str | None) -> str:
    """Return the transport of all-reduce; "auto" is NCCL on GPUs, MPI where usable, else gloo."""
    mpi_installed = importlib.util.find_spec("mpi4py") is not None
    if transport == "auto":
        if device.type == "cuda":
            return "nccl"
        return "mpi" if mpi_installed and launcher in (None, "mpirun") else "gloo"
    if transport == "mpi":
        if not mpi_installed:
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
    """Print the error and exit at once, so that the launcher ends the other ranks: an orderly
    shutdown would wait for ranks that wait for this one."""
    print(f"rookery: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_status)
