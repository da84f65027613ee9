"""The folder of a run, and its error messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import BadInput
from rookery.machine import host_and_cores, versions
from rookery.runs import files
from rookery.runs.run import Run, file_safe

CONFIG = {"algorithm": "ppo", "environment": "ALE/Pong-v5", "env_steps": 100}


def test_default_name_has_algorithm_environment_and_time(tmp_path: Path):
    run = Run.create(tmp_path / "runs", None, CONFIG)
    pattern = r"ppo_ALE-Pong-v5_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[0-9a-f]{4}"
    assert re.fullmatch(pattern, run.name)
    assert run.checkpoints.is_dir()
    assert run.log_path.read_text() == ""
    assert json.loads((run.path / "config.json").read_text()) == CONFIG
    assert Run.open(run.path).config == CONFIG


@pytest.mark.parametrize(
    ("name", "safe"),
    [("ALE/Pong-v5", "ALE-Pong-v5"), ("a b:c", "a-b-c"), ("../x", "x"), ("CartPole-v1",) * 2],
)
def test_file_safe_replaces_unsafe_characters(name: str, safe: str):
    assert file_safe(name) == safe


def test_existing_name_is_refused_and_that_run_unchanged(tmp_path: Path):
    first = Run.create(tmp_path, "mine", CONFIG)
    with pytest.raises(BadInput, match=f"{first.path} already exists.*--name.*--resume"):
        Run.create(tmp_path, "mine", {})
    assert Run.open(first.path).config == CONFIG


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b"])
def test_name_that_leaves_the_runs_folder_is_refused(tmp_path: Path, name: str):
    with pytest.raises(BadInput, match="is not a valid folder name"):
        Run.create(tmp_path, name, CONFIG)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_unwritable_path_is_named(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file.*cannot be written: (Not a directory|File exists)"):
        Run.create(tmp_path / "file" / below, "mine", CONFIG)


def test_failed_creation_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files.os, "replace", _full_disk)
    with pytest.raises(BadInput, match=r"config.json: cannot be written: No space left"):
        Run.create(tmp_path, "mine", CONFIG)
    assert list(tmp_path.iterdir()) == []


def _full_disk(*_: object) -> None:
    raise OSError(28, os.strerror(28))


def test_open_refuses_what_is_not_a_run(tmp_path: Path):
    run = Run.create(tmp_path, "mine", CONFIG)
    with pytest.raises(BadInput, match=f'no such run folder. Did you mean "{run.path}"'):
        Run.open(tmp_path / "mime")
    with pytest.raises(BadInput, match=r"not a run folder: it has no config.json"):
        Run.open(tmp_path)
    (run.path / "config.json").write_text('{"a": ')
    with pytest.raises(BadInput, match=r"config.json: is not JSON"):
        Run.open(run.path)


def test_log_lines_start_with_the_time(tmp_path: Path):
    run = Run.create(tmp_path, "mine", CONFIG)
    run.log("one")
    run.log("two\nthree\n")
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(f"{stamp} one\n{stamp} two\n    three\n", run.log_path.read_text())


def test_result_json_has_null_for_nan_and_infinity(tmp_path: Path):
    run = Run.create(tmp_path, "mine", CONFIG)
    assert run.result is None
    run.write_result({"loss": float("nan"), "deep": [float("inf"), np.float32(0.5), np.int64(3)]})
    assert run.result == {"loss": None, "deep": [None, 0.5, 3]}
    assert "NaN" not in run.result_path.read_text()


def test_failed_write_keeps_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = Run.create(tmp_path, "mine", CONFIG)
    run.write_result({"status": "finished"})
    monkeypatch.setattr(files.os, "replace", _full_disk)
    with pytest.raises(BadInput, match=r"result.json"):
        run.write_result({"status": "other"})
    assert run.result == {"status": "finished"}
    assert not list(run.path.glob(".*"))


def test_progress_parses_numbers_and_skips_a_truncated_row(tmp_path: Path):
    run = Run.create(tmp_path, "mine", CONFIG)
    assert run.progress() == []
    run.progress_path.write_text("env_steps,loss,entropy\n10,0.5,\n20,nan,1e-3\n30,0.5,1")
    first, second = run.progress()
    assert first == {"env_steps": 10, "loss": 0.5, "entropy": None}
    assert isinstance(first["env_steps"], int)
    assert second["loss"] != second["loss"]


def test_versions_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from rookery.machine import versions; found = versions();"
        "print(found['torch'], 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, *imported = done.stdout.split()
    assert version.startswith("2.")
    assert imported == ["False", "False"]
    assert versions()["numpy"] == np.__version__
    assert set(versions()) == {"rookery", "python", "torch", "numpy", "gymnasium", "ale_py"}


def test_cores_counts_the_cores_allowed_to_this_process():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from rookery.machine import cores; print(cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert host_and_cores()["host"]
