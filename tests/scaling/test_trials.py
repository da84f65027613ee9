"""Processes of a study: their output, their failures, and that none outlives it."""

from __future__ import annotations

import sys
import time

import pytest

from rookery import processes
from rookery.errors import RookeryError
from rookery.scaling.trials import failure_reason, run_child

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
other = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print(other.pid, flush=True)
time.sleep(60)
"""
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""


def python(code):
    return [sys.executable, "-c", code]


def alive(pid):
    """Whether a process runs: a zombie nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_goes_to_a_file_and_watch_is_called(tmp_path):
    seen = []
    code = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(0.5)"
    run_child(python(code), tmp_path / "o", 30, lambda: seen.append(1))
    assert sorted((tmp_path / "o").read_text().split()) == ["err", "out"]
    assert seen


def test_a_failed_run_is_reported_with_its_error_line(tmp_path):
    code = "import sys; print('rookery: no such thing'); print('bye'); sys.exit(2)"
    with pytest.raises(RookeryError, match=r"^no such thing \(output: .*/o\)$"):
        run_child(python(code), tmp_path / "o", 30, lambda: None)


def test_failure_reason_is_the_last_error_or_the_last_line():
    assert failure_reason("rookery: a\nrookery: b\nmore\n", 2) == "b"
    assert failure_reason("Traceback\n  there\nKeyError: 3\n\n", 1) == "status 1: KeyError: 3"
    assert failure_reason("", -9) == "status -9: no output"


def test_a_run_past_its_time_limit_may_save_and_end(tmp_path):
    start = time.monotonic()
    with pytest.raises(RookeryError, match="did not end within 1 s"):
        run_child(python(POLITE), tmp_path / "o", 1.0, lambda: None)
    assert "saved" in (tmp_path / "o").read_text()
    assert time.monotonic() - start < 5


def test_a_run_that_ignores_sigterm_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.ProcessTree.end, "__defaults__", (0.3,))
    output = tmp_path / "o"

    def watch():
        if output.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(python(STUBBORN), output, 30, watch)
    grandchild = int(output.read_text())
    time.sleep(0.1)
    assert not alive(grandchild)


def test_processes_that_a_run_leaves_behind_are_ended(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    run_child(python(code), tmp_path / "o", 30, lambda: None)
    time.sleep(0.1)
    assert not alive(int((tmp_path / "o").read_text()))
