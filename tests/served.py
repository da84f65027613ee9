"""Servers for tests, on free ports of the loopback interface."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORLDS = Path(__file__).parent / "server" / "worlds"
"""A folder of modules with environments for `module:Name`."""


class Server:
    """A server in a process of its own."""

    def __init__(self, *arguments: str, port: int = 0, program: str = "rookery_server"):
        paths = [str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program.split(), *arguments, "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=WORLDS,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            preexec_fn=end_with_parent,
        )
        assert self.process.stdout is not None
        found = re.search(r"tcp://\S+:\d+", self.process.stdout.readline())
        if found is None:
            self.stop()
            raise AssertionError(f"the server ended with status {self.process.returncode}")
        self.address = found[0]
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it, like a crash."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> str:
        """Terminate it; return the rest of its output."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=20)
        return output


def end_with_parent() -> None:
    """Run in the new process: have it killed when the tests end, however they end."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


@contextlib.contextmanager
def serving(*arguments: str, port: int = 0, program: str = "rookery_server") -> Iterator[Server]:
    """A server that runs until the end of the block."""
    server = Server(*arguments, port=port, program=program)
    try:
        yield server
    finally:
        server.stop()
