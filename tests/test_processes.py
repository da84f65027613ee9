"""Process trees are ended whole, and signal handlers are restored."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rookery.processes import (
    ProcessTree,
    descendants,
    handling_signals,
    is_alive,
    termination_as_interrupt,
)

IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
PR_GET_CHILD_SUBREAPER = 37
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="prctl is a call of Linux")


def python(code):
    return [sys.executable, "-S", "-c", code]


def start(code, **options):
    null = subprocess.DEVNULL
    return ProcessTree(python(code), stdout=null, stderr=null, **options)


def two_generations(folder, prelude="", separate=False, end="time.sleep(60)"):
    """Code of a process that starts another; each creates a file named by its process id."""
    note = (
        f"{prelude}import os, time; open({str(folder)!r} + f'/pid.{{os.getpid()}}', 'w').close();"
    )
    child = f"{note}time.sleep(60)"
    return (
        f"{note}import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-S', '-c', {child!r}], start_new_session={separate})\n"
        f"while len(os.listdir({str(folder)!r})) < 2: time.sleep(.01)\n"
        f"{end}"
    )


def started(folder, count):
    """Wait for processes that create a file each, and return them."""
    deadline = time.monotonic() + 30
    while len(found := [int(path.suffix[1:]) for path in folder.glob("pid.*")]) < count:
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.01)
    return [psutil.Process(pid) for pid in found if psutil.pid_exists(pid)]


def alive(processes):
    return [process for process in processes if is_alive(process)]


def gone(process, seconds=10.0):
    deadline = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


def is_subreaper():
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return bool(value.value)


@pytest.mark.parametrize("separate", [False, True], ids=["same session", "own session"])
def test_a_tree_is_ended_whole(tmp_path, separate):
    tree = start(two_generations(tmp_path, separate=separate))
    processes = started(tmp_path, 2)
    assert len(alive(processes)) == 2
    tree.end()
    assert alive(processes) == []
    assert tree.wait(0) == -signal.SIGTERM


@pytest.mark.parametrize("separate", [False, True], ids=["same session", "own session"])
def test_processes_that_ignore_sigterm_are_killed_after_the_grace_period(tmp_path, separate):
    tree = start(two_generations(tmp_path, IGNORE_SIGTERM, separate))
    processes = started(tmp_path, 2)
    begin = time.monotonic()
    tree.end(grace_s=0.4)
    assert 0.4 <= time.monotonic() - begin < 20
    assert alive(processes) == []
    assert tree.wait(0) == -signal.SIGKILL


def test_a_command_may_save_and_end_its_children_in_its_own_way(tmp_path):
    """A child in another session, such as a rank, gets no signal while its parent runs."""
    saved = tmp_path / "saved"
    save = f"lambda *_: (time.sleep(.4), open({str(saved)!r}, 'w').close(), sys.exit(0))"
    folder = tmp_path / "pids"
    folder.mkdir()
    end = f"import signal; signal.signal(signal.SIGTERM, {save})\n"
    end += f"open({str(tmp_path / 'ready')!r}, 'w').close(); time.sleep(60)"
    tree = start(two_generations(folder, separate=True, end=end))
    processes = started(folder, 2)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    (child,) = (process for process in processes if process.pid != tree.process.pid)
    ending = threading.Thread(target=tree.end)
    ending.start()
    while not saved.exists():
        assert is_alive(child)
        time.sleep(0.02)
    ending.join()
    assert tree.wait(0) == 0
    assert alive(processes) == []


def test_an_exception_while_waiting_kills_at_once(tmp_path, monkeypatch):
    tree = start(two_generations(tmp_path, IGNORE_SIGTERM))
    processes = started(tmp_path, 2)
    wait, calls = tree.wait, []

    def interrupted_once(timeout_s=None):
        calls.append(timeout_s)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(timeout_s)

    monkeypatch.setattr(tree, "wait", interrupted_once)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tree.end(grace_s=30)
    assert time.monotonic() - begin < 20
    assert alive(processes) == []


def test_kill_does_not_wait_and_keeps_the_exit_status(tmp_path):
    tree = start(two_generations(tmp_path, separate=True))
    processes = started(tmp_path, 2)
    tree.kill()
    assert all(map(gone, processes))
    assert tree.wait(10) == -signal.SIGKILL


def test_what_a_command_that_ended_left_in_its_session_is_ended(tmp_path):
    tree = start(two_generations(tmp_path, end="sys.exit(3)"))
    processes = started(tmp_path, 2)
    assert tree.wait(20) == 3
    tree.end()
    assert alive(processes) == []
    assert tree.wait(0) == 3


@linux_only
def test_orphans_of_other_sessions_and_environments_are_ended(tmp_path):
    leave = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '100'], start_new_session=True,"
    )
    leave += " env={}, stdout=subprocess.DEVNULL).pid)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leave!r}])"
    with open(tmp_path / "out", "w") as output:
        tree = ProcessTree(python(code), stdout=output, stderr=output, adopt_orphans=True)
    assert is_subreaper()
    assert tree.wait(30) == 0
    orphan = psutil.Process(int((tmp_path / "out").read_text()))
    assert is_alive(orphan)
    tree.end()
    assert not orphan.is_running(), "it must be reaped too"
    assert not is_subreaper()


@linux_only
def test_a_command_that_cannot_start_leaves_orphans_to_process_1():
    with pytest.raises(OSError):
        ProcessTree(["/no/such/program"], stdout=None, stderr=None, adopt_orphans=True)
    assert not is_subreaper()


@pytest.mark.parametrize("adopt_orphans", [False, True])
def test_other_children_are_left_alone(adopt_orphans):
    other = subprocess.Popen(python("import time; time.sleep(60)"), start_new_session=True)
    try:
        start("import time; time.sleep(60)", adopt_orphans=adopt_orphans).end()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@linux_only
def test_children_end_when_their_parent_is_killed(tmp_path):
    code = f"""
import subprocess, sys, time
from rookery.processes import ProcessTree
note = "import os, time; open({str(tmp_path)!r} + f'/pid.{{os.getpid()}}', 'w').close();"
ProcessTree([sys.executable, "-S", "-c", note + "time.sleep(60)"], stdout=None, stderr=None)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    (child,) = started(tmp_path, 1)
    try:
        assert child.ppid() == parent.pid
        parent.kill()
        parent.wait()
        assert gone(child)
    finally:
        if is_alive(child):
            child.kill()


def test_blocked_signals_do_not_reach_the_command(tmp_path):
    code = "import os, signal, sys; os.kill(os.getpid(), signal.SIGUSR1); sys.exit(7)"
    assert start(code).wait(20) == -signal.SIGUSR1
    assert start(code, blocked_signals=[signal.SIGUSR1]).wait(20) == 7


def test_a_command_has_its_own_session_and_no_input(tmp_path):
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    with open(tmp_path / "out", "w") as output:
        assert ProcessTree(python(code), stdout=output, stderr=None).wait(20) == 0
    assert (tmp_path / "out").read_text() == "True ''\n"


def test_descendants_are_found_across_sessions(tmp_path):
    tree = start(two_generations(tmp_path, separate=True))
    processes = started(tmp_path, 2)
    try:
        (child,) = descendants(tree.process.pid)
        assert {tree.process.pid, child.pid} == {process.pid for process in processes}
        assert set(processes) <= set(descendants(os.getpid()))
    finally:
        tree.end()
    assert descendants(tree.process.pid) == []


@pytest.fixture
def foreground():
    """Handlers of a program in the foreground, whatever a test sets."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_handled_in_the_body_and_restored_after_it():
    before = signal.getsignal(signal.SIGUSR1)
    received = []
    with handling_signals([signal.SIGUSR1], lambda number, frame: received.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    assert received == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is before
    with pytest.raises(ZeroDivisionError), handling_signals([signal.SIGUSR1], lambda *_: None):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(
    "context", [lambda: handling_signals([15], print), termination_as_interrupt]
)
def test_handlers_stay_as_they_are_in_other_threads(context):
    before, seen = signal.getsignal(signal.SIGTERM), []

    def body():
        with context():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.usefixtures("foreground")
def test_sigterm_interrupts_and_its_handler_is_restored():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("foreground")
def test_sigterm_interrupts_a_background_job_that_ignores_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("foreground")
def test_sigterm_is_handled_as_the_body_handles_ctrl_c():
    """Ray Tune sets a handler for Ctrl-C and leaves it behind."""
    received = []
    with termination_as_interrupt():
        signal.signal(signal.SIGINT, lambda *_: received.append("tune"))
        signal.raise_signal(signal.SIGTERM)
    assert received == ["tune"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("foreground")
def test_sighup_interrupts_unless_it_is_ignored_as_under_nohup():
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with termination_as_interrupt():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_processes_that_tests_start_handle_ctrl_c():
    """Shells make background jobs of scripts ignore SIGINT, which their children inherit."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n", done.stderr
