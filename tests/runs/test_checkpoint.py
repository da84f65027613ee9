"""Checkpoints: damage is detected, and a crash loses at most the newest one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rookery.errors import BadInput
from rookery.runs import checkpoint
from rookery.runs.checkpoint import (
    load_checkpoint,
    load_newest,
    path_of,
    save_checkpoint,
    steps,
)


class Crash(BaseException):
    """Simulates the death of the process."""


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "weights": {"policy.0.weight": torch.full((8, 4), value)},
        "random": {"torch": torch.arange(5, dtype=torch.uint8), "count": torch.tensor(3)},
    }


def saved(folder: Path, step: int, keep: int | None = None) -> Path:
    return save_checkpoint(folder, step, state(step), {"updates": step}, keep)


def value_of(found: checkpoint.Checkpoint) -> float:
    return float(found.tensors["weights"]["policy.0.weight"][0, 0])


def test_loaded_checkpoint_equals_the_saved_one(tmp_path: Path):
    flat = torch.arange(6.0)
    tensors = {
        "weights": {"a": flat[:4].view(2, 2).t(), "tied": flat, "b": flat},
        "empty": {},
        "odd": {"bf": torch.ones(2, dtype=torch.bfloat16), "none": torch.zeros(0, 3)},
    }
    path = save_checkpoint(tmp_path, 123_456, tensors, {"updates": 7, "loss": float("nan")}, None)
    found = load_checkpoint(path)
    assert path == tmp_path / "step_000123456"
    assert (found.step, found.meta) == (123_456, {"updates": 7, "loss": None})
    assert set(found.tensors) == {"weights", "empty", "odd"}
    for name, group in tensors.items():
        assert set(found.tensors[name]) == set(group)
        for key, tensor in group.items():
            assert found.tensors[name][key].dtype == tensor.dtype
            assert torch.equal(found.tensors[name][key], tensor)


def test_loaded_tensors_can_be_changed_without_touching_the_file(tmp_path: Path):
    path = saved(tmp_path, 1)
    load_checkpoint(path).tensors["weights"]["policy.0.weight"].add_(1)
    assert value_of(load_checkpoint(path)) == 1


def test_checkpoint_is_safetensors_and_json_only(tmp_path: Path):
    names = {file.name for file in saved(tmp_path, 1).iterdir()}
    assert names == {"weights.safetensors", "random.safetensors", "meta.json"}
    source = Path(checkpoint.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source


def test_oldest_checkpoints_are_removed_but_not_protected_ones(tmp_path: Path):
    for step in (1, 2, 3):
        saved(tmp_path, step)
    save_checkpoint(tmp_path, 4, state(4), {}, keep=2, protect=[1])
    assert steps(tmp_path) == [1, 3, 4]
    saved(tmp_path, 1_000_000_000, keep=1)
    assert steps(tmp_path) == [1_000_000_000]
    assert [path.name for path in tmp_path.iterdir()] == ["step_1000000000"]


def test_newly_written_checkpoint_is_never_removed(tmp_path: Path):
    saved(tmp_path, 9)
    saved(tmp_path, 5, keep=1)
    assert 5 in steps(tmp_path)


def test_keep_below_one_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="keep"):
        saved(tmp_path, 1, keep=0)


def test_saving_the_same_step_replaces_it(tmp_path: Path):
    saved(tmp_path, 5)
    save_checkpoint(tmp_path, 5, state(-1.0), {}, keep=3)
    assert value_of(load_newest(tmp_path)) == -1
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000005"]


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int) -> None:
    """Raise Crash at the given call of `owner.name`, and in every cleanup after it."""
    real: Callable[..., object] = getattr(owner, name)
    calls = 0

    def dying(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise Crash
        return real(*args, **kwargs)

    def no_cleanup(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr(owner, name, dying)
    if owner is not shutil:
        monkeypatch.setattr(shutil, "rmtree", no_cleanup)


CRASHES = [(os, "fsync", call) for call in range(1, 6)]
CRASHES += [(os, "rename", 1), (os, "rename", 2), (os, "mkdir", 1), (shutil, "rmtree", 1)]


@pytest.mark.parametrize(("owner", "name", "call"), CRASHES)
@pytest.mark.parametrize("step", [20, 10])
def test_crash_at_any_point_leaves_an_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int, step: int
):
    """Step 20 is new and displaces step 5; step 10 replaces the newest one."""
    for old in (5, 10):
        saved(tmp_path, old)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, call)
        with pytest.raises(Crash):
            save_checkpoint(tmp_path, step, state(99.0), {}, keep=2 if step == 10 else 1)
    found = load_newest(tmp_path)
    assert (found.step, value_of(found)) in [(10, 10), (step, 99)]
    assert found.skipped == []
    saved(tmp_path, 30, keep=5)
    assert load_newest(tmp_path).step == 30
    assert not list(tmp_path.glob(".*"))
    for path in tmp_path.iterdir():
        load_checkpoint(path)
    assert 10 in steps(tmp_path) or step == 20


def test_checkpoint_renamed_for_replacement_is_still_found(tmp_path: Path):
    path = saved(tmp_path, 10)
    path.rename(tmp_path / ".old_step_000000010")
    assert value_of(load_newest(tmp_path)) == 10
    saved(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]
    assert load_checkpoint(path).step == 10


def test_crash_during_removal_leaves_no_partial_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def half(path: Path, *_: object, **__: object) -> None:
        (path / "weights.safetensors").unlink()
        raise Crash

    saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Crash):
            saved(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [2]
    saved(tmp_path, 3, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_000000002", "step_000000003"}


def test_failed_write_is_reported_and_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path, 1)

    def full_disk(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(BadInput, match="step_000000002: cannot be written: No space left"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001"]


def test_unwritable_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file.*cannot be written"):
        saved(tmp_path / "file" / "checkpoints", 1)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "truncated"), (flip, "changed"), (lengthen, "changed"), (Path.unlink, "cannot be read")],
)
def test_damaged_file_is_named_and_its_checkpoint_skipped(
    tmp_path: Path, damage: Callable[[Path], None], message: str
):
    for step in (1, 2):
        saved(tmp_path, step)
    damage(path_of(tmp_path, 2) / "random.safetensors")
    with pytest.raises(BadInput, match=rf"step_000000002/random\.safetensors: .*{message}"):
        load_checkpoint(path_of(tmp_path, 2))
    found = load_newest(tmp_path)
    assert found.step == 1
    assert len(found.skipped) == 1
    assert "step_000000002/random.safetensors" in found.skipped[0]


def edit(path: Path) -> None:
    meta = json.loads(path.read_text())
    meta["meta"]["updates"] += 1
    path.write_text(json.dumps(meta))


@pytest.mark.parametrize("damage", [cut, edit, Path.unlink, lambda path: path.write_bytes(b"\xff")])
def test_damaged_meta_json_is_named(tmp_path: Path, damage: Callable[[Path], None]):
    path = saved(tmp_path, 1)
    intact = (path / "meta.json").read_bytes()
    (path / "meta.json").write_bytes(intact.rstrip())
    damage(path / "meta.json")
    with pytest.raises(BadInput, match=r"step_000000001/meta\.json"):
        load_checkpoint(path)


def test_error_without_intact_checkpoint_names_each_problem(tmp_path: Path):
    with pytest.raises(BadInput, match=r"has no intact checkpoint$"):
        load_newest(tmp_path / "nowhere")
    cut(saved(tmp_path, 1) / "weights.safetensors")
    with pytest.raises(BadInput, match=r"no intact checkpoint.*weights.safetensors: is truncated"):
        load_newest(tmp_path)


def test_loading_a_missing_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="no such checkpoint"):
        load_checkpoint(tmp_path / "step_000000001")
