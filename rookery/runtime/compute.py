"""What a process computes on: its device, its threads, its memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from rookery.algorithms.base import Spaces
from rookery.errors import BadInput, require
from rookery.networks.images import has_images
from rookery.runs.run import machine


def device_of(name: str, local_rank: int = 0) -> torch.device:
    """The device a rank's network lives on."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f'device: "{name}" is none; use auto, cpu, cuda or cuda:N') from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(count > 0, f"device={name}: no GPU is to be seen here; use --device cpu")
        index = device.index if device.index is not None else local_rank % count
        require(index < count, f"device={name}: there are {count} GPUs, counted from 0")
        return torch.device("cuda", index)
    require(device.type == "cpu", f"device={name} is not supported; use cpu or cuda")
    return device


def cores_each(ranks_here: int) -> int:
    """This machine's cores, shared out over its ranks."""
    return max(1, int(machine()["cores"]) // ranks_here)


def is_small(spaces: Spaces) -> bool:
    """Whether a network for these spaces costs more to call than to compute: those for vectors."""
    return not has_images(spaces.obs)


def useful_threads(spaces: Spaces, cores: int) -> int:
    """Threads that make a network faster: small products lose more by waiting for each other than
    they gain."""
    return 1 if is_small(spaces) else cores


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next tensor instead of returning it to the system:
    fetching it back, page by page, costs a tenth of a small network's update."""
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 512 << 20)
        libc.mallopt(mmap_threshold, 32 << 20)


BACK = 10
"""How much nicer, as the system counts it, a thread is that lets others go first."""


def step_back(thread: int) -> None:
    """Let the other threads go first where there are fewer cores than threads; on Linux only, where
    a thread has a priority of its own."""
    if sys.platform == "linux":
        with suppress(OSError):  # it may be over, or may not be touched
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, nice + BACK)


@contextmanager
def stepping_back() -> Iterator[None]:
    """Threads that are started meanwhile, as native environments do, step back."""
    before = threads_here()
    yield
    for thread in threads_here() - before:
        step_back(thread)


def threads_here() -> set[int]:
    """The threads of this process, by the system's numbers; none where it does not tell."""
    tasks = "/proc/self/task"
    return set(map(int, os.listdir(tasks))) if os.path.isdir(tasks) else set()
