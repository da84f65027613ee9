"""The machine: cores, devices, memory, priorities of threads, installed versions."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from rookery.errors import BadInput, require

if TYPE_CHECKING:
    import torch

PACKAGES = ("rookery", "torch", "numpy", "gymnasium", "ale_py")


def cores() -> int:
    """Return the number of cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def host_and_cores() -> dict[str, str | int]:
    """Return the machine's name and the number of cores this process may use."""
    return {"host": os.uname().nodename, "cores": cores()}


def versions() -> dict[str, str | None]:
    """Return the installed versions that determine what a run computes; None if not installed."""
    from importlib import metadata

    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def device_of(name: str, local_rank: int = 0) -> torch.device:
    """Return the torch device for the setting `device` of the rank `local_rank` of this machine."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f'device: unknown device "{name}"; use auto, cpu, cuda or cuda:N') from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(count > 0, f"device={name}: no GPU was found; use --device cpu")
        index = device.index if device.index is not None else local_rank % count
        require(index < count, f"device={name}: there are {count} GPUs, counted from 0")
        return torch.device("cuda", index)
    require(device.type == "cpu", f"device={name} is not supported; use cpu or cuda")
    return device


def resident_memory_mb() -> float:
    """Return the memory that this process has in RAM, shared pages included."""
    return psutil.Process().memory_info().rss / 1e6


def cores_each(ranks_here: int) -> int:
    """Return the number of cores for each of `ranks_here` ranks on this machine."""
    return max(1, cores() // ranks_here)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory: getting it back from the system, page by page, costs a tenth of
    a small network's update."""
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 512 << 20)
        libc.mallopt(mmap_threshold, 32 << 20)


NICENESS = 10
"""Niceness added to threads that run at low priority."""


def lower_priority(thread: int) -> None:
    """Lower the priority of one thread; on Linux only, where threads have their own."""
    if sys.platform == "linux":
        with suppress(OSError):  # the thread may have ended, or may not be ours to change
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, nice + NICENESS)


@contextmanager
def lower_priority_of_new_threads() -> Iterator[None]:
    """Lower the priority of threads that the body starts, as native environments do."""
    before = thread_ids()
    yield
    for thread in thread_ids() - before:
        lower_priority(thread)


def thread_ids() -> set[int]:
    """Return the system's ids of this process's threads; empty where /proc is missing."""
    tasks = "/proc/self/task"
    return set(map(int, os.listdir(tasks))) if os.path.isdir(tasks) else set()
