"""Evidence of a trap in a run's folder: the batch and weights that repeat an update."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from safetensors.torch import load_file, save_file
from torch import Tensor

from rookery.data.steps import Batch, Steps
from rookery.data.tree import Tree
from rookery.errors import require
from rookery.runs.files import read_json, write_json, writing

PART = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def save_evidence(
    folder: Path, batch: Batch, weights: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write a batch, weights by name and a description into a new folder."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files = {"batch": named_leaves(batch._asdict(), ""), "weights": dict(weights)}
        for name, tensors in files.items():
            stored = {
                key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()
            }
            save_file(stored, folder / f"{name}.safetensors")
    write_json(folder / "trap.json", dict(about))


def load_evidence(folder: Path) -> tuple[Batch, dict[str, Tensor], dict[str, Any]]:
    """Return batch, weights and description of a folder that `save_evidence` wrote."""
    others = sorted(path.parent.name for path in folder.parent.glob("*/trap.json"))
    names = f"; it has: {', '.join(others)}" if others else "; no trap stopped the run"
    require((folder / "trap.json").is_file(), f"replay: the run has no trap {folder.name}{names}")
    tree = from_names(load_file(folder / "batch.safetensors"))
    steps = Steps(**({"obs": (), "extra": {}} | tree.pop("steps")))
    batch = Batch(**({"state": ()} | tree | {"steps": steps}))
    return batch, load_file(folder / "weights.safetensors"), dict(read_json(folder / "trap.json"))


def named_leaves(tree: Tree, name: str) -> dict[str, Tensor]:
    """Return the tensors of nested dicts and tuples by path, as in ".steps.obs[0]"."""
    if isinstance(tree, Tensor):
        return {name: tree}
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    found: dict[str, Tensor] = {}
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            found |= named_leaves(part, f"{name}.{quote(str(key), safe='').replace('.', '%2E')}")
    elif isinstance(tree, tuple):
        for index, part in enumerate(tree):
            found |= named_leaves(part, f"{name}[{index}]")
    return found


def from_names(leaves: Mapping[str, Tensor]) -> Any:
    """Return nested dicts and tuples of tensors by path, the inverse of `named_leaves`."""
    root: dict[Any, Any] = {}
    for name, leaf in leaves.items():
        *path, last = (int(i) if i else unquote(key) for key, i in PART.findall(name))
        inside = root
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = leaf
    return with_tuples(root)


def with_tuples(tree: Any) -> Any:
    """Return nested dicts with those of numbered keys as tuples."""
    if not isinstance(tree, dict):
        return tree
    parts = {key: with_tuples(part) for key, part in tree.items()}
    if parts and all(isinstance(key, int) for key in parts):
        return tuple(parts[i] for i in range(len(parts)))
    return parts
