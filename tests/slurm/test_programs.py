"""The programs that batch scripts call."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rookery.backends.ranks.launch import free_port
from rookery.runs import checkpoint
from rookery.slurm.head_address import listens, own_address
from rookery.slurm.offspring import offspring
from rookery.slurm.start_or_resume import beginning


def test_a_job_starts_where_there_is_nothing(tmp_path):
    assert beginning(tmp_path / "run") == "start"
    assert list(tmp_path.iterdir()) == []


def test_a_job_goes_on_from_a_whole_checkpoint(tmp_path):
    run = tmp_path / "run"
    for step in (1, 2):
        checkpoint.save(run / "checkpoints", step, {"weights": {"w": torch.zeros(2)}}, {})
    (run / "checkpoints" / "step_000000002" / "weights.safetensors").write_bytes(b"cut")
    assert beginning(run) == "resume"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_without_a_whole_checkpoint_is_put_aside(tmp_path, capsys):
    run = tmp_path / "run"
    for number in (1, 2):
        (run / "checkpoints").mkdir(parents=True)
        (run / "log.txt").write_text(str(number))
        assert beginning(run) == "start"
        assert f"run.aside{number}" in capsys.readouterr().err
    assert not run.exists()
    assert [(tmp_path / f"run.aside{n}" / "log.txt").read_text() for n in (1, 2)] == ["1", "2"]


def test_a_free_port_is_nobodys():
    port = free_port("127.0.0.1")
    assert not listens(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        assert listens(f"127.0.0.1:{port}")


def ready(*args: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "rookery.slurm.wait_for_cluster", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_a_wait_for_a_head_that_never_comes_has_an_end_and_says_what_for():
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    began = time.monotonic()
    done = ready(address, 2, 2)
    assert done.returncode == 1
    assert time.monotonic() - began < 20
    assert f"of 2 s for the head of the Ray cluster to listen at {address}" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("rookery: waited 2 s in vain for the head")


def test_a_node_ends_its_processes_wherever_they_went():
    """In a session of its own, its parent gone, its environment empty."""
    leave = "import subprocess; subprocess.Popen(['sleep', '100'], start_new_session=True, env={})"
    code = f"""
import os, subprocess, sys
from rookery.slurm.offspring import adopt_orphans, end_offspring, offspring
adopt_orphans()
subprocess.run([sys.executable, "-c", {leave!r}])
before = offspring(os.getpid())
end_offspring()
print(*before, offspring(os.getpid()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid, after = done.stdout.split(maxsplit=1)
    assert after == "set()\n", done.stderr
    assert not Path(f"/proc/{pid}").exists()


def test_a_node_of_ray_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rookery[ray]'")
    address = f"{own_address()}:{free_port('')}"
    words = [sys.executable, "-m", "rookery.slurm.ray_node", address, "--head", "--seconds", "60"]
    node = subprocess.Popen(words)
    try:
        assert ready(address, 1, 60).returncode == 0
        (folder,) = map(Path, folders_of(node.pid))
        assert len(offspring(node.pid)) > 3
        node.terminate()
        time.sleep(1)
        started = offspring(node.pid)
        assert len(started) > 3, "while the key is there, the training may have to save"
        (tmp_path / "token").unlink()
        assert node.wait(timeout=40) == 0
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
        assert not folder.exists()
    finally:
        node.send_signal(signal.SIGUSR1)
        node.wait(timeout=40)


def folders_of(pid: int) -> set[str]:
    """Folders of nodes that are named by the programs below a process."""
    commands = [Path(f"/proc/{each}/cmdline").read_text() for each in offspring(pid)]
    return {found for command in commands for found in re.findall(r"--temp-dir=(\S+?)\0", command)}
