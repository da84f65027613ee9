"""Checkpoints: folders of safetensors and JSON files, with checksums that detect damage.

A checkpoint is written to a hidden folder beside its final path, synced to disk and renamed.
Prefixes of hidden folders: `.tmp_` is being written, `.old_` is being replaced, `.gone_` is being
removed. Loading a checkpoint never executes code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from rookery.errors import BadInput, require
from rookery.runs.files import jsonable, read_json, to_json, writing

FORMAT = 1
_NAME = re.compile(r"(\.old_)?step_\d+")


@dataclass
class Checkpoint:
    """Content of a checkpoint; `skipped` has the errors of newer ones that are damaged."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    keep: int | None = None,
    protect: Collection[int] = (),
) -> Path:
    """Write `folder/step_NNNNNNNNN`, then remove the oldest beyond `keep` (None: keep all).

    `tensors` maps a file's name to its tensors: {"weights": ...} goes to weights.safetensors. The
    steps in `protect` are never removed and do not count. Only one process may write to a folder.
    """
    require(keep is None or keep >= 1, f"keep: at least one checkpoint must be kept, got {keep}")
    place = path_of(folder, step)
    with writing(place):
        folder.mkdir(parents=True, exist_ok=True)
        _clean_up(folder)
        fresh = place.with_name(f".tmp_{place.name}")
        try:
            _write(fresh, step, tensors, meta)
            _replace(fresh, place)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        if keep is not None:
            others = [path for path in _candidates(folder) if _step(path) not in {step, *protect}]
            for path in others[: max(0, len(others) - (keep - 1))]:
                _remove(path)
    return place


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in `path`; raise BadInput that names a missing or damaged file."""
    require(path.is_dir(), f"{path}: no such checkpoint")
    body = _read_meta(path / "meta.json")
    tensors = {
        name.removesuffix(".safetensors"): _read_tensors(path / name, facts)
        for name, facts in body["files"].items()
    }
    return Checkpoint(body["step"], tensors, body["meta"], path)


def load_newest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint that is not damaged."""
    skipped: list[str] = []
    for path in reversed(_candidates(folder)):
        try:
            found = load_checkpoint(path)
        except BadInput as error:
            skipped.append(str(error))
            continue
        found.skipped = skipped
        return found
    why = f" ({'; '.join(skipped)})" if skipped else ""
    raise BadInput(f"{folder}: has no intact checkpoint{why}")


def steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints, oldest first, damaged ones included."""
    return [_step(path) for path in _candidates(folder)]


def label_checkpoint(folder: Path, name: str, step: int) -> None:
    """Make the link `folder/name` ("best", "last") point to the checkpoint of `step`."""
    link = folder / name
    fresh = link.with_name(f".{name}")
    with writing(link):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path_of(folder, step).name)
        os.replace(fresh, link)


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`."""
    return folder / f"step_{step:09d}"


def _write(
    fresh: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]
) -> None:
    """Write all files of a checkpoint to the new folder `fresh` and sync them to disk."""
    fresh.mkdir()
    files = {}
    for name, state in tensors.items():
        require(re.fullmatch(r"[\w-]+", name), f'"{name}" is not a valid name of a state file')
        # safetensors refuses tensors that share memory (tied parameters) or are not contiguous.
        whole = torch.contiguous_format
        data = bytes_of({k: v.detach().cpu().clone(memory_format=whole) for k, v in state.items()})
        _write_synced(fresh / f"{name}.safetensors", data)
        files[f"{name}.safetensors"] = {"bytes": len(data), "sha256": _digest(data)}
    body = {"format": FORMAT, "step": int(step), "files": files, "meta": jsonable(meta)}
    text = to_json({**body, "sha256": _digest_of_body(body)})
    _write_synced(fresh / "meta.json", text.encode())
    _sync_folder(fresh)


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(fresh: Path, place: Path) -> None:
    """Rename `fresh` to `place`. A folder cannot replace one that is not empty, so an old one is
    renamed first; after a crash in between, readers still find it under that name."""
    old = place.with_name(f".old_{place.name}")
    replaces = place.exists()
    if replaces:
        os.rename(place, old)
    try:
        os.rename(fresh, place)
    except BaseException:
        if replaces:
            os.rename(old, place)
        raise
    _sync_folder(place.parent)
    if replaces:
        _remove(old)


def _clean_up(folder: Path) -> None:
    """Undo or complete what a crash interrupted."""
    for old in folder.glob(".old_step_*"):
        place = folder / old.name.removeprefix(".old_")
        if place.exists():
            _remove(old)
        else:
            os.rename(old, place)
    for partial in (*folder.glob(".tmp_step_*"), *folder.glob(".gone_step_*")):
        shutil.rmtree(partial)


def _remove(path: Path) -> None:
    # Renamed first, so that a crash cannot leave a partial checkpoint under a regular name.
    gone = path.with_name(f".gone_{path.name.removeprefix('.old_')}")
    os.rename(path, gone)
    shutil.rmtree(gone)


def _candidates(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first; an `.old_` one only if none has replaced it."""
    paths = [path for path in folder.glob("*step_*") if _NAME.fullmatch(path.name)]
    real = {_step(path) for path in paths if not path.name.startswith(".")}
    return sorted(
        (path for path in paths if not path.name.startswith(".") or _step(path) not in real),
        key=_step,
    )


def _step(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _read_meta(path: Path) -> dict[str, Any]:
    body = read_json(path)
    intact = isinstance(body, dict) and body.pop("sha256", "") == _digest_of_body(body)
    require(intact, f"{path}: was changed or damaged after it was written")
    known = body.get("format") == FORMAT
    require(known, f"{path}: has format {body.get('format')}, this version reads {FORMAT}")
    return dict(body)


def _read_tensors(path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    size = facts["bytes"]
    require(len(data) >= size, f"{path}: is truncated, {len(data):,} of {size:,} bytes are left")
    intact = len(data) == size and _digest(data) == facts["sha256"]
    require(intact, f"{path}: was changed or damaged after it was written")
    try:
        return tensors_of(data)
    except SafetensorError as error:
        raise BadInput(f"{path}: is not a safetensors file: {error}") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of_body(body: Mapping[str, Any]) -> str:
    return _digest(json.dumps(body, sort_keys=True).encode())
