"""Sums over ranks: one process, MPI, gloo or NCCL."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


class Reducer:
    """Communication between ranks, which all make the same calls in the same order.

    Subclasses communicate; this class is for a single process.
    """

    name = "one process"
    rank = 0
    world = 1

    def sum(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over ranks, on every rank."""

    def sum_to_first(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over ranks, on rank 0."""

    def broadcast(self, tensor: Tensor) -> None:
        """Replace `tensor` by that of rank 0."""

    def gather(self, item: Any) -> list[Any]:
        """Return the items of all ranks, by rank, on every rank."""
        return [item]

    def close(self) -> None:
        """Leave the group."""


class Mpi(Reducer):
    """Ranks of an MPI job; tensors lie in the CPU's memory."""

    name = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank = self.comm.Get_rank()
        self.world = self.comm.Get_size()

    def sum(self, tensor: Tensor) -> None:
        self.comm.Allreduce(self.mpi.IN_PLACE, tensor.detach().numpy())

    def sum_to_first(self, tensor: Tensor) -> None:
        array = tensor.detach().numpy()
        if self.rank == 0:
            self.comm.Reduce(self.mpi.IN_PLACE, array)
        else:
            self.comm.Reduce(array, None)

    def broadcast(self, tensor: Tensor) -> None:
        self.comm.Bcast(tensor.detach().numpy())

    def gather(self, item: Any) -> list[Any]:
        return self.comm.allgather(item)

    def close(self) -> None:
        self.comm.Barrier()


class Torch(Reducer):
    """Ranks of a torch.distributed group, over gloo or NCCL."""

    def __init__(self, backend: str, rank: int, world: int, init_method: str):
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world)
        self.name = backend
        self.rank = rank
        self.world = world

    def sum(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor.detach())

    def sum_to_first(self, tensor: Tensor) -> None:
        dist.reduce(tensor.detach(), dst=0)

    def broadcast(self, tensor: Tensor) -> None:
        dist.broadcast(tensor.detach(), src=0)

    def gather(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.world
        dist.all_gather_object(items, item)
        return items

    def close(self) -> None:
        dist.barrier()
        dist.destroy_process_group()
