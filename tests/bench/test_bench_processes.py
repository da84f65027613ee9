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

from rookery.bench.runner import run_command
from rookery.errors import BadInput

CHILD = "import time; time.sleep(60)"


def run(tmp_path, code, timeout_s=20.0, env=()):
    """Run Python code as a command and return how it ended."""
    files = tmp_path / "out", tmp_path / "err"
    return run_command([sys.executable, "-S", "-c", code], dict(env), *files, timeout_s)


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


def family(folder, separate=False):
    """Code of a command that starts another process; both create files named by their ids."""
    note = f"import os; open({str(folder)!r} + f'/pid.{{os.getpid()}}', 'w').close();"
    child = f"{note}{CHILD}"
    return (
        f"{note}import subprocess, sys, time;"
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
    run_command(["echo", "$HOME", ";", "*"], {}, tmp_path / "out", tmp_path / "err", 10)
    assert (tmp_path / "out").read_text() == "$HOME ; *\n"


def test_there_is_no_input(tmp_path):
    """What is typed at the terminal does not reach the command."""
    terminal, keyboard = os.pipe()
    os.write(keyboard, b"typed\n")
    os.close(keyboard)
    before = os.dup(0)
    os.dup2(terminal, 0)
    try:
        assert run_command(["cat"], {}, tmp_path / "out", tmp_path / "err", 10).status == 0
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
def test_a_program_that_cannot_be_started_is_bad_input(tmp_path, program):
    with pytest.raises(BadInput, match="cannot be started"):
        run_command([program], {}, tmp_path / "out", tmp_path / "err", 10)


def test_a_command_that_times_out_has_no_status(tmp_path):
    ended = run(tmp_path, CHILD, timeout_s=0.4)
    assert ended.status is None
    assert 0.4 <= ended.duration < 5
    assert run(tmp_path, "raise SystemExit(4)").status == 4


def test_a_timeout_may_be_longer_than_poll_allows(tmp_path):
    assert run(tmp_path, "1", timeout_s=1e12).status == 0


@pytest.mark.parametrize("separate", [False, True], ids=["group", "session"])
def test_a_command_that_times_out_leaves_no_child(tmp_path, separate):
    code = family(tmp_path, separate=separate) + "time.sleep(60)"
    seconds = 1.0
    while run(tmp_path, code, seconds).status is None and len(list(tmp_path.glob("pid.*"))) < 2:
        seconds *= 2  # the machine is busy
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


@pytest.mark.parametrize("separate", [False, True], ids=["group", "session"])
def test_a_command_that_ends_well_leaves_no_child(tmp_path, separate):
    ended = run(tmp_path, family(tmp_path, separate=separate))
    assert ended.status == 0
    assert [pid for pid in pids(tmp_path, 2) if alive(pid)] == []


def test_a_command_may_save_what_it_has_when_it_times_out(tmp_path):
    code = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved')));"
        "print('ready', flush=True); time.sleep(60)"
    )
    seconds = 0.5
    while run(tmp_path, code, seconds).status is None and not (tmp_path / "out").read_text():
        seconds *= 2  # the machine is busy
    assert (tmp_path / "out").read_text() == "ready\nsaved\n"


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
