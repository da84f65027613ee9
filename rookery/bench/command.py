"""Run a benchmark's command with its output in files, and leave none of its processes behind."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rookery.errors import BadInput
from rookery.processes import GRACE_S, ProcessTree
from rookery.runs.files import writing

MAX_COMMAND_WAIT_S = 1e6
"""Longest timeout that the operating system's poll() takes."""


class CommandEnd(NamedTuple):
    """How a command ended: its exit status, None if it timed out, and the seconds it took."""

    status: int | None
    duration: float


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    timeout_s: float | None,
    grace_s: float = GRACE_S,
) -> CommandEnd:
    """Run a command without a shell, its output in files; BadInput if it cannot be started.

    When this returns or raises, on Ctrl-C too, all processes of the command have ended.
    """
    with ExitStack() as files:
        with writing(stdout):
            out, err = (files.enter_context(open(path, "wb")) for path in (stdout, stderr))
        begin = time.perf_counter()
        try:
            tree = ProcessTree(
                command, stdout=out, stderr=err, env={**os.environ, **env}, adopt_orphans=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"{command[0]} cannot be started: {reason}") from None
        try:
            status = tree.wait(None if timeout_s is None else min(timeout_s, MAX_COMMAND_WAIT_S))
            duration = time.perf_counter() - begin
        finally:
            tree.end(grace_s)
    return CommandEnd(status, duration)
