"""Commands are run as they are, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery.bench import process
from rookery.errors import BadInput

CHILD = "import time; time.sleep(60)"


def run(tmp_path, code, timeout=20.0, grace_s=5.0, env=()):
    """Run Python code as a command; how it ended."""
    files = tmp_path / "out", tmp_path / "err"
    command = [sys.executable, "-S", "-c", code]
    return process.run(command, dict(env), *files, timeout, grace_s)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids(folder, count, seconds=20.0):
    """The ids that commands wrote into files named by them."""
    until = time.monotonic() + seconds
    while len(found := [int(path.suffix[1:]) for path in folder.glob("pid.*")]) < count:
        assert time.monotonic() < until, "the commands did not start"
        time.sleep(0.01)
    return found


def family(folder, prelude="", separate=False):
    """Code of a command that starts another process, and of both writes the ids."""
    note = f"import os; open({str(folder)!r} + f'/pid.{{os.getpid()}}', 'w').close();"
    child = f"{prelude}{note}{CHILD}"
    return (
        f"{prelude}{note}import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-S', '-c', {child!r}], start_new_session={separate});"
        "\nwhile len([f for f in os.listdir({!r}) if f.startswith('pid.')]) < 2: time.sleep(.01)\n"
    ).replace("{!r}", repr(str(folder)))


def test_output_status_and_time(tmp_path):
    code = "import sys, time; print('to out'); print('to err', file=sys.stderr); time.sleep(.3)"
    ended = run(tmp_path, code + "; sys.exit(3)")
    assert ended.status == 3
    assert 0.3 <= ended.duration < 10
    assert (tmp_path / "out").read_text() == "to out\n"
    assert (tmp_path / "err").read_text() == "to err\n"


def test_there_is_no_shell(tmp_path):
    process.run(["echo", "$HOME", ";", "*"], {}, tmp_path / "out", tmp_path / "err", 10)
    assert (tmp_path / "out").read_text() == "$HOME ; *\n"


def test_there_is_no_input(tmp_path):
    """What is typed at the terminal does not reach the command."""
    terminal, keyboard = os.pipe()
    os.write(keyboard, b"typed\n")
    os.close(keyboard)
    before = os.dup(0)
    os.dup2(terminal, 0)
    try:
        assert process.run(["cat"], {}, tmp_path / "out", tmp_path / "err", 10).status == 0
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(terminal)
    assert (tmp_path / "out").read_text() == ""


def test_the_environment_is_ours_with_what_the_spec_adds(tmp_path, monkeypatch):
    monkeypatch.setenv("INHERITED", "1")
    run(tmp_path, "import os; print(os.environ['INHERITED'], os.environ['A'])", env={"A": "2"})
    assert (tmp_path / "out").read_text() == "1 2\n"


def test_the_folder_is_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tmp_path, "import os; print(os.getcwd())")
    assert (tmp_path / "out").read_text().strip() == str(tmp_path)


@pytest.mark.parametrize("program", ["no-such-program-anywhere", "/tmp", "a\0b"])
def test_what_cannot_be_started(tmp_path, program):
    with pytest.raises(BadInput, match="cannot be started"):
        process.run([program], {}, tmp_path / "out", tmp_path / "err", 10)


def test_a_command_in_a_session_of_its_own(tmp_path):
    run(tmp_path, "import os; print(os.getsid(0) == os.getpid())")
    assert (tmp_path / "out").read_text() == "True\n"


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "polling"])
def test_a_command_is_ended_when_its_time_is_up(tmp_path, monkeypatch, pidfd):
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    ended = run(tmp_path, CHILD, timeout=0.4)
    assert ended.status is None
    assert 0.4 <= ended.duration < 5
    assert run(tmp_path, "raise SystemExit(4)").status == 4


@pytest.fixture
def soon(tmp_path, monkeypatch):
    """Time is up as soon as a command and its child are under way, however busy the machine."""
    monkeypatch.setattr(process, "_wait", lambda *_: not pids(tmp_path, 2))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("separate", [False, True], ids=["group", "session"])
def test_time_out_ends_the_command_and_its_children(tmp_path, separate):
    code = family(tmp_path, separate=separate) + "time.sleep(60)"
    assert run(tmp_path, code).status is None
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("separate", [False, True], ids=["group", "session"])
def test_those_who_do_not_listen_are_killed_after_the_grace(tmp_path, separate):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    code = family(tmp_path, deaf, separate) + "time.sleep(60)"
    begin = time.monotonic()
    assert run(tmp_path, code, grace_s=0.3).status is None
    assert time.monotonic() - begin < 20
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


@pytest.mark.usefixtures("soon")
def test_without_proc_the_group_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PROC", tmp_path / "none")
    assert run(tmp_path, family(tmp_path) + "time.sleep(60)", grace_s=0.3).status is None
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


def test_a_command_may_save_what_it_has_when_asked_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_wait", lambda *_: not pids(tmp_path, 1))
    code = (
        "import os, signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(.5) or print('kept')));"
        f"open({str(tmp_path)!r} + f'/pid.{{os.getpid()}}', 'w').close(); time.sleep(60)"
    )
    assert run(tmp_path, code).status is None
    assert (tmp_path / "out").read_text() == "kept\n"


@pytest.mark.parametrize("separate", [False, True], ids=["group", "session"])
def test_a_command_that_ends_well_leaves_no_child(tmp_path, separate):
    ended = run(tmp_path, family(tmp_path, separate=separate))
    assert ended.status == 0
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


def test_processes_of_others_are_left_alone(tmp_path):
    other = subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
    try:
        assert run(tmp_path, "1").status == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def ignore_ctrl_c():
    """Be as a process in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def start_bench(tmp_path, separate, before=None):
    """`rookery bench` in a process of its own, once its second command is under way."""
    code = family(tmp_path, separate=separate) + "time.sleep(60)"
    script = tmp_path / "slow.py"
    script.write_text(code)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "quick: {cmd: echo speed 3, data: {speed: {regexp: 'speed (.*)'}}}\n"
        f"slow: {{cmd: ['{{python}}', -S, {script}]}}\n"
        "never: {cmd: echo}\n"
    )
    command = [sys.executable, "-m", "rookery", "bench", str(spec), "--log-dir", "logs"]
    pipe = subprocess.PIPE
    bench = subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, preexec_fn=before
    )
    return bench, pids(tmp_path, 2)


@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGTERM, ignore_ctrl_c)],
    ids=["ctrl-c", "terminated", "terminated in the background"],
)
def test_ctrl_c_keeps_what_is_finished(tmp_path, number, before):
    bench, both = start_bench(tmp_path, separate=True, before=before)
    bench.send_signal(number)
    out, err = bench.communicate(timeout=30)
    assert bench.returncode == 130
    assert [pid for pid in both if alive(pid)] == []
    results = json.loads((tmp_path / "logs" / "benchmark_results.json").read_text())
    assert results["status"] == "interrupted"
    assert [(row["benchmark"], row["metrics"]) for row in results["rows"]] == [
        ("quick", {"speed": 3.0})
    ]
    assert "interrupted: 1 ok, 0 failed, 2 not run" in out
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_killed_runner_takes_its_command_with_it(tmp_path):
    bench, both = start_bench(tmp_path, separate=False)
    leader = next(pid for pid in both if os.getsid(pid) == pid)
    try:
        bench.kill()
        bench.communicate(timeout=30)
        until = time.monotonic() + 10
        while alive(leader) and time.monotonic() < until:
            time.sleep(0.02)
        assert not alive(leader)
    finally:
        for pid in both:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
