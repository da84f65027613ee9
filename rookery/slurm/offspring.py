"""Every process that this one has brought about, and their end.

A mark in the environment would not do: programs that change their title, as Ray's do, overwrite the
environment that others can read.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent is gone become its children, wherever they
    went; they would become those of process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def offspring(pid: int) -> set[int]:
    """The processes below a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        # Processes end while they are looked at; a name may hold spaces and parentheses.
        with suppress(OSError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(stat[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def end_offspring() -> None:
    """End every process below this one by force, and return when there is none."""
    while pids := offspring(os.getpid()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
