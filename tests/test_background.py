"""The tests themselves, run in the background."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_processes_that_tests_start_answer_ctrl_c():
    """A shell that is not interactive has its background jobs ignore SIGINT, and they hand that on
    to the processes they start."""
    code = f"import conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n", done.stderr
