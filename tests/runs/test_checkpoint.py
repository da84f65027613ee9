"""Checkpoints are whole, or are told to be broken; a crash costs at most the newest."""

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
from rookery.runs.checkpoint import check_matches, load, newest_whole, path_of, save, steps


class Crash(BaseException):
    """Stands for the process dying: nothing may catch it for good."""


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "weights": {"policy.0.weight": torch.full((8, 4), value)},
        "random": {"torch": torch.arange(5, dtype=torch.uint8), "count": torch.tensor(3)},
    }


def saved(folder: Path, step: int, keep: int | None = None) -> Path:
    return save(folder, step, state(step), {"updates": step}, keep)


def value_of(found: checkpoint.Checkpoint) -> float:
    return float(found.tensors["weights"]["policy.0.weight"][0, 0])


def test_what_is_saved_comes_back(tmp_path: Path):
    flat = torch.arange(6.0)
    tensors = {
        "weights": {"a": flat[:4].view(2, 2).t(), "tied": flat, "b": flat},
        "empty": {},
        "odd": {"bf": torch.ones(2, dtype=torch.bfloat16), "none": torch.zeros(0, 3)},
    }
    path = save(tmp_path, 123_456, tensors, {"updates": 7, "loss": float("nan")}, None)
    found = load(path)
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
    load(path).tensors["weights"]["policy.0.weight"].add_(1)
    assert value_of(load(path)) == 1


def test_a_checkpoint_is_safetensors_and_json_only(tmp_path: Path):
    names = {file.name for file in saved(tmp_path, 1).iterdir()}
    assert names == {"weights.safetensors", "random.safetensors", "meta.json"}
    source = Path(checkpoint.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source


def test_the_oldest_are_pruned_but_not_the_protected(tmp_path: Path):
    for step in (1, 2, 3):
        saved(tmp_path, step)
    save(tmp_path, 4, state(4), {}, keep=2, protect=[1])
    assert steps(tmp_path) == [1, 3, 4]
    saved(tmp_path, 1_000_000_000, keep=1)
    assert steps(tmp_path) == [1_000_000_000]
    assert [path.name for path in tmp_path.iterdir()] == ["step_1000000000"]


def test_the_checkpoint_just_written_is_never_pruned(tmp_path: Path):
    saved(tmp_path, 9)
    saved(tmp_path, 5, keep=1)
    assert 5 in steps(tmp_path)


def test_keep_must_keep_something(tmp_path: Path):
    with pytest.raises(BadInput, match="keep"):
        saved(tmp_path, 1, keep=0)


def test_the_same_step_is_replaced(tmp_path: Path):
    saved(tmp_path, 5)
    save(tmp_path, 5, state(-1.0), {}, keep=3)
    assert value_of(newest_whole(tmp_path)) == -1
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000005"]


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int) -> None:
    """Die at the given call of `owner.name`, and run no cleanup after it, as a killed process."""
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
def test_a_crash_at_any_point_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int, step: int
):
    """Step 20 is new and pushes out step 5; step 10 replaces the newest one."""
    for old in (5, 10):
        saved(tmp_path, old)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, call)
        with pytest.raises(Crash):
            save(tmp_path, step, state(99.0), {}, keep=2 if step == 10 else 1)
    found = newest_whole(tmp_path)
    assert (found.step, value_of(found)) in [(10, 10), (step, 99)]
    assert found.skipped == []
    saved(tmp_path, 30, keep=5)
    assert newest_whole(tmp_path).step == 30
    assert not list(tmp_path.glob(".*"))
    for path in tmp_path.iterdir():
        load(path)
    assert 10 in steps(tmp_path) or step == 20


def test_one_that_stepped_aside_for_a_replacement_is_still_found(tmp_path: Path):
    path = saved(tmp_path, 10)
    path.rename(tmp_path / ".old_step_000000010")
    assert value_of(newest_whole(tmp_path)) == 10
    saved(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]
    assert load(path).step == 10


def test_a_crash_while_removing_leaves_no_half_checkpoint(
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


def test_a_failed_write_is_told_and_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path, 1)

    def full_disk(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(BadInput, match="step_000000002: cannot be written: No space left"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
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
    ("damage", "told"),
    [(cut, "cut short"), (flip, "altered"), (lengthen, "altered"), (Path.unlink, "cannot be read")],
)
def test_a_damaged_file_is_named_and_passed_over(
    tmp_path: Path, damage: Callable[[Path], None], told: str
):
    for step in (1, 2):
        saved(tmp_path, step)
    damage(path_of(tmp_path, 2) / "random.safetensors")
    with pytest.raises(BadInput, match=rf"step_000000002/random\.safetensors: .*{told}"):
        load(path_of(tmp_path, 2))
    found = newest_whole(tmp_path)
    assert found.step == 1
    assert len(found.skipped) == 1
    assert "step_000000002/random.safetensors" in found.skipped[0]


def edit(path: Path) -> None:
    meta = json.loads(path.read_text())
    meta["meta"]["updates"] += 1
    path.write_text(json.dumps(meta))


@pytest.mark.parametrize("damage", [cut, edit, Path.unlink, lambda path: path.write_bytes(b"\xff")])
def test_damaged_meta_is_named(tmp_path: Path, damage: Callable[[Path], None]):
    path = saved(tmp_path, 1)
    whole = (path / "meta.json").read_bytes()
    (path / "meta.json").write_bytes(whole.rstrip())
    damage(path / "meta.json")
    with pytest.raises(BadInput, match=r"step_000000001/meta\.json"):
        load(path)


def test_no_whole_checkpoint_says_what_ails_each(tmp_path: Path):
    with pytest.raises(BadInput, match=r"holds no whole checkpoint$"):
        newest_whole(tmp_path / "nowhere")
    cut(saved(tmp_path, 1) / "weights.safetensors")
    with pytest.raises(BadInput, match=r"no whole checkpoint.*weights.safetensors: was cut short"):
        newest_whole(tmp_path)


def test_loading_what_is_not_there(tmp_path: Path):
    with pytest.raises(BadInput, match="no such checkpoint"):
        load(tmp_path / "step_000000001")


def test_another_network_is_told_by_its_first_difference():
    weights = {"policy.0.weight": torch.zeros(64, 4), "policy.0.bias": torch.zeros(64)}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_matches(weights, shapes)

    def told(wanted: dict[str, torch.Size]) -> str:
        with pytest.raises(BadInput) as caught:
            check_matches(weights, wanted)
        return str(caught.value).removeprefix("the checkpoint is of another network: ")

    wider = {**shapes, "policy.0.weight": torch.Size([64, 8])}
    assert told(wider) == "policy.0.weight is [64, 4], this network has [64, 8]"
    assert told({**shapes, "v": torch.Size([1])}) == "it lacks v, here [1]"
    fewer = {"policy.0.weight": shapes["policy.0.weight"]}
    assert told(fewer) == "its policy.0.bias has no place in this network"
