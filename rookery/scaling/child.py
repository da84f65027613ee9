"""Run `rookery train` in a child process with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rookery.errors import RookeryError
from rookery.processes import ProcessTree

CHILD_POLL_S = 0.2


def run_child(command: list[str], console: Path, limit_s: float, watch: Callable[[], None]) -> None:
    """Run `command` with its output in the file `console`, and call `watch` every 0.2 s.

    Raises RookeryError if it fails or takes longer than `limit_s`. All of its processes have ended
    when this returns or raises.
    """
    deadline = time.monotonic() + limit_s
    with open(console, "w", encoding="utf-8") as output:
        tree = ProcessTree(command, stdout=output, stderr=output, adopt_orphans=True)
        try:
            while (status := tree.wait(CHILD_POLL_S)) is None and time.monotonic() < deadline:
                watch()
        finally:
            tree.end()
    if status is None:
        raise RookeryError(f"did not end within {limit_s:.0f} s")
    if status:
        text = console.read_text(encoding="utf-8", errors="replace")
        raise RookeryError(f"{failure_reason(text, status)} (output: {console})")


def failure_reason(output: str, status: int) -> str:
    """Return the error that a failed run printed; without one, its exit status and last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("rookery: ") for line in lines if line.startswith("rookery: ")]
    return errors[-1] if errors else f"status {status}: {lines[-1] if lines else 'no output'}"
