"""Processes of a study: their output, their failures, and that none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rookery.bench.process import termination_interrupts
from rookery.errors import RookeryError
from rookery.scaling import child
from rookery.scaling.child import descendants, reason, run_child

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


def test_output_goes_to_a_file_and_somebody_watches(tmp_path):
    seen = []
    code = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(0.5)"
    run_child(python(code), tmp_path / "o", 30, lambda: seen.append(1))
    assert sorted((tmp_path / "o").read_text().split()) == ["err", "out"]
    assert seen


def test_a_failure_tells_its_line(tmp_path):
    code = "import sys; print('rookery: no such thing'); print('bye'); sys.exit(2)"
    with pytest.raises(RookeryError, match=r"^no such thing \(its output: .*/o\)$"):
        run_child(python(code), tmp_path / "o", 30, lambda: None)


def test_reasons():
    assert reason("rookery: a\nrookery: b\nmore\n", 2) == "b"
    assert reason("Traceback\n  there\nKeyError: 3\n\n", 1) == "status 1: KeyError: 3"
    assert reason("", -9) == "status -9: without a word"


def test_a_run_past_its_time_is_asked_to_leave(tmp_path):
    start = time.monotonic()
    with pytest.raises(RookeryError, match="did not end within 1 s"):
        run_child(python(POLITE), tmp_path / "o", 1.0, lambda: None)
    assert "saved" in (tmp_path / "o").read_text()
    assert time.monotonic() - start < 5


def test_nothing_outlives_a_run_that_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.3)
    output = tmp_path / "o"

    def watch():
        if output.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(python(STUBBORN), output, 30, watch)
    grandchild = int(output.read_text())
    time.sleep(0.1)
    assert not alive(grandchild)


def test_what_a_run_leaves_in_its_group_is_ended(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    run_child(python(code), tmp_path / "o", 30, lambda: None)
    time.sleep(0.1)
    assert not alive(int((tmp_path / "o").read_text()))


def test_descendants_are_found_across_sessions():
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time;"
    code += " time.sleep(60)'], start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    inner = int(process.stdout.readline())
    try:
        assert descendants(process.pid) == [inner]
        assert set(descendants(os.getpid())) >= {process.pid, inner}
    finally:
        os.kill(inner, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_termination_is_an_interrupt():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hang_up_is_an_interrupt_unless_it_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), termination_interrupts():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with termination_interrupts():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
