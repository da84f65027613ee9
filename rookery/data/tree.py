"""Functions over the leaves of nested dicts and tuples of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any
"""An array, or a nested dict or tuple of arrays."""


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Return the tree of `fn(leaf, ...)` over the leaves of equally nested trees."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, tree[key], *(r[key] for r in rest)) for key in tree}
    if isinstance(tree, tuple):
        mapped = [tree_map(fn, *parts) for parts in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree in order."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    return [tree]


def tree_replace(tree: Tree, leaves: Mapping[tuple[Any, ...], Any]) -> Tree:
    """Return the tree with the leaves at some paths replaced; a path is a tuple of keys and
    indices."""

    def replaced(tree: Tree, path: tuple[Any, ...], leaf: Any) -> Tree:
        if not path:
            return leaf
        key, *rest = path
        part = replaced(tree[key], tuple(rest), leaf)
        if isinstance(tree, dict):
            return {**tree, key: part}
        return (*tree[:key], part, *tree[key + 1 :])

    for path, leaf in leaves.items():
        tree = replaced(tree, path, leaf)
    return tree


def to_tensors(tree: Tree, device: torch.device) -> Tree:
    """Return the tree with its arrays as tensors; on the CPU they share memory with the arrays."""
    if isinstance(tree, np.ndarray) and device.type == "cpu":
        return torch.from_numpy(tree)
    return tree_map(lambda x: torch.as_tensor(x, device=device), tree)


def map_batch(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the lanes `index` of every leaf [T, B, ...]."""
    return tree_map(lambda x: x[:, index], tree)


def tree_split(
    tree: Tree, parts: int, split: Callable[[Tensor], Sequence[Tensor]]
) -> Sequence[Tree]:
    """Return `parts` trees: the i-th holds the i-th part that `split` makes of every leaf."""
    if not isinstance(tree, dict | tuple):
        return split(tree)
    branches = tree.values() if isinstance(tree, dict) else tree
    columns = [tree_split(branch, parts, split) for branch in branches]
    rows = list(zip(*columns, strict=True)) if columns else [()] * parts
    if isinstance(tree, dict):
        return [dict(zip(tree, row, strict=True)) for row in rows]
    return [type(tree)(*row) for row in rows] if hasattr(tree, "_fields") else rows


def split_rows(leaf: Tensor, parts: int) -> list[Tensor]:
    """Split rows [N, ...] into `parts` tensors [1, M, ...] whose M differ by at most one.

    Parts of the same size also have the same strides, so that a traced update fits all of them.
    """
    size, larger = divmod(len(leaf), parts)
    end = larger * (size + 1)
    first = leaf[:end].unflatten(0, (larger, 1, size + 1)).unbind()
    return [*first, *leaf[end:].unflatten(0, (parts - larger, 1, size)).unbind()]


def flatten_time(tree: Tree) -> Tree:
    """Return the tree with every leaf [T, B, ...] reshaped to [T * B, ...]."""
    return tree_map(lambda x: x.flatten(0, 1), tree)
