"""The programs that batch scripts call."""

from __future__ import annotations

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
from rookery.processes import descendants, is_alive
from rookery.runs import checkpoint
from rookery.slurm.head_address import is_listening, own_address
from rookery.slurm.start_or_resume import start_or_resume


def test_a_job_starts_a_run_without_a_folder(tmp_path):
    assert start_or_resume(tmp_path / "run") == "start"
    assert list(tmp_path.iterdir()) == []


def test_a_job_resumes_from_a_whole_checkpoint(tmp_path):
    run = tmp_path / "run"
    for step in (1, 2):
        checkpoint.save_checkpoint(
            run / "checkpoints", step, {"weights": {"w": torch.zeros(2)}}, {}
        )
    (run / "checkpoints" / "step_000000002" / "weights.safetensors").write_bytes(b"cut")
    assert start_or_resume(run) == "resume"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_without_a_whole_checkpoint_is_renamed(tmp_path, capsys):
    run = tmp_path / "run"
    for number in (1, 2):
        (run / "checkpoints").mkdir(parents=True)
        (run / "log.txt").write_text(str(number))
        assert start_or_resume(run) == "start"
        assert f"run.aside{number}" in capsys.readouterr().err
    assert not run.exists()
    assert [(tmp_path / f"run.aside{n}" / "log.txt").read_text() for n in (1, 2)] == ["1", "2"]


def test_nothing_listens_on_a_free_port():
    port = free_port("127.0.0.1")
    assert not is_listening(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        assert is_listening(f"127.0.0.1:{port}")


def ready(*args: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "rookery.slurm.wait_for_cluster", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_waiting_for_a_head_that_never_starts_times_out_and_says_so():
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    began = time.monotonic()
    done = ready(address, 2, 2)
    assert done.returncode == 1
    assert time.monotonic() - began < 20
    assert f"of 2 s for the head of the Ray cluster to listen at {address}" in done.stdout
    assert done.stderr.splitlines()[-1].startswith(
        "rookery: timed out after 2 s waiting for the head"
    )


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
        assert len(descendants(node.pid)) > 3
        node.terminate()
        time.sleep(1)
        started = descendants(node.pid)
        assert len(started) > 3, "while the key is there, the training may have to save"
        (tmp_path / "token").unlink()
        assert node.wait(timeout=40) == 0
        assert not any(map(is_alive, started))
        assert not folder.exists()
    finally:
        node.send_signal(signal.SIGUSR1)
        node.wait(timeout=40)


def folders_of(pid: int) -> set[str]:
    """Folders of nodes that are named by the programs below a process."""
    words = [word for each in descendants(pid) for word in each.cmdline()]
    return {word.removeprefix("--temp-dir=") for word in words if word.startswith("--temp-dir=")}
