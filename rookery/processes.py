"""Process trees: start, watch and end them; signals; this process's rank."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, NamedTuple

import psutil

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and a request to end."""
GRACE_S = 5.0
"""Seconds that a process may take to end once it is asked to, before it is killed."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of prctl, from linux/prctl.h."""


class ProcessTree:
    """A command in its own session, with every process that it starts.

    Ctrl-C in a terminal does not reach it. On Linux the command receives SIGTERM when the process
    that started it dies, however that happens.

    With `adopt_orphans`, on Linux, processes of the tree whose parents have ended become children
    of this process, and so are found in whatever session and with whatever environment. They are
    recognised as new children, so this is for programs that run one command at a time.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: IO | int | None,
        stderr: IO | int | None,
        env: Mapping[str, str] | None = None,
        blocked_signals: Iterable[int] = (),
        adopt_orphans: bool = False,
    ):
        self.adopts_orphans = adopt_orphans
        if adopt_orphans:
            self.other_children = set(psutil.Process().children())
            set_subreaper(True)
        try:
            self.process = psutil.Popen(
                list(command),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=child_setup(blocked_signals),
            )
        except BaseException:
            if adopt_orphans:
                set_subreaper(False)
            raise

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status of the command, or None if it has not ended after `timeout_s`."""
        try:
            return self.process.wait(timeout_s)
        except psutil.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send SIGTERM to the processes in the command's own session."""
        send_signal(self.session(), signal.SIGTERM)

    def end(self, grace_s: float = GRACE_S) -> None:
        """End all processes of the tree: ask them to, and kill those that remain after `grace_s`.

        Other sessions are asked only when the command has ended, since it may want to end them in
        its own way. A second Ctrl-C, or any exception while waiting, kills at once.
        """
        deadline = time.monotonic() + grace_s
        known: set[psutil.Process] = set()
        try:
            # Kept, because the ancestry of processes in other sessions is lost with the command.
            known |= self.members()
            if grace_s > 0:
                asked = set(self.session())
                send_signal(asked, signal.SIGTERM)
                self.wait(grace_s)
                known |= self.members()
                send_signal(known - asked, signal.SIGTERM)
                self.await_end(known, deadline - time.monotonic())
        finally:
            deadline = time.monotonic() + GRACE_S
            while (rest := {*filter(is_alive, known), *self.members()}) and (
                time.monotonic() < deadline
            ):
                send_signal(rest, signal.SIGKILL)
                self.await_end(rest, 0.5)
            self.await_end(self.orphans(), 0)
            if self.adopts_orphans:
                set_subreaper(False)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the tree, without waiting: safe in a signal handler."""
        send_signal(self.members(), signal.SIGKILL)

    def members(self) -> set[psutil.Process]:
        """Return the running processes of the tree."""
        roots = [self.process, *self.orphans()]
        found = {*roots, *self.session()}
        for root in roots:
            found.update(descendants(root.pid))
        return set(filter(is_alive, found))

    def session(self) -> list[psutil.Process]:
        """Return the running processes in the command's session."""
        found = []
        for pid in psutil.pids():
            with suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.process.pid:
                    found.append(self.process if pid == self.process.pid else psutil.Process(pid))
        return list(filter(is_alive, found))

    def orphans(self) -> set[psutil.Process]:
        """Return the processes of the tree that this process has adopted."""
        if not self.adopts_orphans:
            return set()
        new = set(psutil.Process().children()) - self.other_children
        return {each for each in new if each.pid != self.process.pid}

    def await_end(self, processes: Collection[psutil.Process], timeout_s: float) -> None:
        """Wait until the processes have ended, or the time is up."""
        # Only `self.process` may reap the command, or its exit status would be lost.
        others = [each for each in processes if each.pid != self.process.pid]
        deadline = time.monotonic() + timeout_s
        self.wait(max(0.0, timeout_s))
        psutil.wait_procs(others, max(0.0, deadline - time.monotonic()))


def descendants(pid: int) -> list[psutil.Process]:
    """Return the children of a process, their children and so on; [] if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def is_alive(process: psutil.Process) -> bool:
    """True if the process runs; False for a zombie, which has ended but was not waited for."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def send_signal(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to each process that still runs and may be signalled."""
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def child_setup(blocked_signals: Iterable[int]) -> Callable[[], None]:
    """Return the function that a child calls between fork and exec: SIGTERM on the parent's death,
    and the signals to block."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    parent, blocked = os.getpid(), list(blocked_signals)

    def setup() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # it died before prctl
                os._exit(128 + signal.SIGTERM)

    return setup


def set_subreaper(enabled: bool) -> None:
    """On Linux, make orphaned descendants children of this process instead of process 1."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


@contextmanager
def handling_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Call `handler` on these signals while the body runs, then restore the previous handlers.

    Python allows handlers in the main thread only; in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C while the body runs; SIGHUP too, unless ignored, as under nohup.

    Restores the handler of SIGINT as well, which Ray Tune replaces.
    """
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    interrupt_handler = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Shells make background jobs of scripts ignore SIGINT; a SIGTERM must end them still.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    try:
        with handling_signals(numbers, interrupt):
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt_handler)


class RankPlace(NamedTuple):
    """Rank of this process, number of ranks, and the launcher that started them."""

    launcher: str
    rank: int
    world: int
    local_rank: int


def rank_place() -> RankPlace | None:
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
