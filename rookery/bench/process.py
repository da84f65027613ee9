"""A command in a session of its own, from its start to the end of all it has started."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rookery.errors import BadInput
from rookery.runs.files import writing

GRACE_S = 5.0
"""Seconds between asking processes to end and ending them."""
MARK = "ROOKERY_BENCH_COMMAND"
"""Environment variable by which processes that left the command's session are known."""
PROC = Path("/proc")


class Ended(NamedTuple):
    """How a command ended: its status, None if it ran out of time, and the seconds it took."""

    status: int | None
    duration: float


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    timeout: float | None,
    grace_s: float = GRACE_S,
) -> Ended:
    """Run a command without a shell, its output in files; BadInput if it cannot be started.

    When this returns or raises, by Ctrl-C too, no process of the command is left.
    """
    mark = uuid.uuid4().hex
    with ExitStack() as files:
        with writing(stdout):
            out, err = (files.enter_context(open(path, "wb")) for path in (stdout, stderr))
        begin = time.perf_counter()
        process = _start(command, {**os.environ, **env, MARK: mark}, out.fileno(), err.fileno())
        try:
            in_time = _wait(process, timeout)
            duration = time.perf_counter() - begin
        finally:
            _end(process, mark, grace_s)
    return Ended(process.returncode if in_time else None, duration)


def _start(
    command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{command[0]} cannot be started: {reason}") from None


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux, what makes the process to come end when this one is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1
    return lambda: prctl(set_parent_death_signal, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], timeout: float | None) -> bool:
    """Whether the process ended in time. It is not reaped, so that its id stays its own."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        return process.returncode is not None
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(None if timeout is None else min(timeout, 1e6) * 1000))
    finally:
        os.close(handle)


def _end(process: subprocess.Popen[bytes], mark: str, grace_s: float) -> None:
    """End the group and what left it: asked first, killed after the grace or a second Ctrl-C."""
    try:
        _signal(process.pid, mark, signal.SIGTERM)
        _await_none(process.pid, mark, grace_s)
    finally:
        _signal(process.pid, mark, signal.SIGKILL)
        _await_none(process.pid, mark, grace_s)
        process.wait()


def _signal(group: int, mark: str, number: signal.Signals) -> None:
    left = [pid for pid, its_group in _living(group, mark) if its_group != group]
    with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted for a zombie
        os.killpg(group, number)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _await_none(group: int, mark: str, seconds: float) -> None:
    """Wait until none of the command's processes is left, or the time is up."""
    until, pause = time.monotonic() + seconds, 0.001
    while _living(group, mark) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _living(group: int, mark: str) -> list[tuple[int, int]]:
    """Id and group of each process in the group or with the mark, those just ended left out."""
    if not PROC.is_dir():
        return _group_alone(group)
    first = _start_time(group)
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        # Processes end while they are looked at, and those of others keep their variables.
        with suppress(OSError, IndexError, ValueError):
            state, its_group, started = _stat(folder)
            if state in "ZX":
                continue
            if its_group == group or (started >= first and _has_mark(folder, mark)):
                found.append((int(folder.name), its_group))
    return found


def _group_alone(group: int) -> list[tuple[int, int]]:
    """Without /proc: the group, for as long as it takes signals."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [(group, group)]


def _stat(folder: Path) -> tuple[str, int, int]:
    """State, group and start time; the name before them may hold spaces and parentheses."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[2]), int(fields[19])


def _start_time(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return _stat(PROC / str(pid))[2]
    return 0


def _has_mark(folder: Path, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """A termination signal is as Ctrl-C, so that it ends the command and keeps the results; a
    hang-up too, unless it is ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
