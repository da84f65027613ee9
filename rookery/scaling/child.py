"""A training run in a process of its own, seen to its end whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rookery.backends.ranks.launch import start
from rookery.errors import RookeryError

POLL_S = 0.2
GRACE_S = 5.0
"""How long a run may take to save and leave once it is asked to."""


def run_child(command: list[str], console: Path, limit_s: float, watch: Callable[[], None]) -> None:
    """Run `command` with its output in the file `console`; RookeryError if it fails or lasts
    longer than `limit_s`. `watch` is called again and again meanwhile."""
    with open(console, "w", encoding="utf-8") as output:
        process = start(command, dict(os.environ), output.fileno(), output)
        try:
            status = wait(process, limit_s, watch)
        finally:
            end(process)
    if status is None:
        raise RookeryError(f"it did not end within {limit_s:.0f} s")
    if status:
        text = console.read_text(encoding="utf-8", errors="replace")
        raise RookeryError(f"{reason(text, status)} (its output: {console})")


def wait(process: subprocess.Popen, limit_s: float, watch: Callable[[], None]) -> int | None:
    """The exit status, or None when time is up."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        watch()
    return None


def end(process: subprocess.Popen) -> None:
    """Ask the process to leave, then end it and whatever it started."""
    try:
        if process.poll() is None:
            signal_group(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        # Ranks have groups of their own, found by their ancestry while that is there.
        for pid in [*descendants(process.pid), process.pid]:
            signal_group(pid, signal.SIGKILL)
        process.wait()


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group that `pid` leads, if there is one still."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def descendants(ancestor: int) -> list[int]:
    """The processes that `ancestor` started, and those that they did; on Linux."""
    parents = dict(family())
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def family() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in brackets, may hold anything; state and parent follow it.
            _, _, rest = stat.read_text(errors="replace").rpartition(")")
            yield int(stat.parent.name), int(rest.split()[1])


def reason(output: str, status: int) -> str:
    """What a run that failed told in one line; of an error nobody foresaw, its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line.removeprefix("rookery: ") for line in lines if line.startswith("rookery: ")]
    return told[-1] if told else f"status {status}: {lines[-1] if lines else 'without a word'}"
