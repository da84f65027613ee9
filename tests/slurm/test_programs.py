"""The programs that batch scripts call."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rookery.runs import checkpoint
from rookery.runtime.launch import free_port
from rookery.slurm.address import listens, own_address
from rookery.slurm.beginning import beginning
from rookery.slurm.node import MARK, end_marked, marked


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
    words = [sys.executable, "-m", "rookery.slurm.ready", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_a_wait_for_a_head_that_never_comes_has_an_end_and_says_what_for():
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    began = time.monotonic()
    done = ready(address, 2, 2)
    assert done.returncode == 1
    assert time.monotonic() - began < 20
    assert f"of 2 s for the head of the Ray cluster to listen at {address}" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("rookery: waited 2 s in vain for the head")


def test_a_node_finds_its_processes_wherever_they_went(tmp_path):
    """A process in a session of its own, whose parent is gone, still bears the mark."""
    code = "import subprocess; subprocess.Popen(['sleep', '100'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {MARK: str(tmp_path)})
    (pid,) = marked(tmp_path)
    try:
        assert marked(tmp_path / "other") == []
        end_marked(tmp_path)
        assert marked(tmp_path) == []
    finally:
        if pid in marked(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_a_node_of_ray_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rookery[ray]'")
    address = f"{own_address()}:{free_port('')}"
    words = [sys.executable, "-m", "rookery.slurm.node", address, "--head", "--seconds", "60"]
    node = subprocess.Popen(words)
    try:
        assert ready(address, 1, 60).returncode == 0
        (folder,) = (path for path in Path("/tmp").glob("rookery-*") if node.pid in family(path))
        assert len(marked(folder)) > 3
        node.terminate()
        time.sleep(1)
        assert len(marked(folder)) > 3, "while the key is there, the training may have to save"
        (tmp_path / "token").unlink()
        assert node.wait(timeout=40) == 0
        assert marked(folder) == []
        assert not folder.exists()
    finally:
        node.send_signal(signal.SIGUSR1)
        node.wait(timeout=40)


def family(folder: Path) -> set[int]:
    """The parents of the processes that bear a node's mark."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in marked(folder)]
    return {int(stat.rpartition(")")[2].split()[1]) for stat in stats}
