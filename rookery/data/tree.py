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
    for path, leaf in leaves.items():
        tree = with_leaf(tree, path, leaf)
    return tree


def with_leaf(tree: Tree, path: tuple[Any, ...], leaf: Any) -> Tree:
    """Return the tree with the leaf at `path` replaced."""
    if not path:
        return leaf
    key, *rest = path
    if isinstance(tree, dict):
        return {**tree, key: with_leaf(tree[key], tuple(rest), leaf)}
    return (*tree[:key], with_leaf(tree[key], tuple(rest), leaf), *tree[key + 1 :])


def to_tensors(tree: Tree, device: torch.device) -> Tree:
    """Return the tree with its arrays as tensors; on the CPU they share memory with the arrays."""
    if isinstance(tree, np.ndarray) and device.type == "cpu":
        return torch.from_numpy(tree)
    return tree_map(lambda x: torch.as_tensor(x, device=device), tree)


def map_batch(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the lanes `index` of every leaf [T, B, ...]."""
    return tree_map(lambda x: x[:, index], tree)


Split = Callable[[Tensor], Sequence[Tensor]]
"""Function that splits one tensor into several."""


def tree_split(tree: Tree, parts: int, split: Split) -> Sequence[Tree]:
    """Return `parts` trees: the i-th holds the i-th part that `split` makes of every leaf."""
    if isinstance(tree, dict):
        columns = [tree_split(branch, parts, split) for branch in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip_branches(columns, parts)]
    if isinstance(tree, tuple):
        rows = zip_branches([tree_split(branch, parts, split) for branch in tree], parts)
        return [type(tree)(*row) for row in rows] if hasattr(tree, "_fields") else rows
    return split(tree)


def split_rows(leaf: Tensor, parts: int) -> list[Tensor]:
    """Split rows [N, ...] into `parts` tensors [1, M, ...] whose M differ by at most one.

    Parts of the same size also have the same strides, so that a traced update fits all of them.
    """
    size, larger = divmod(len(leaf), parts)
    end = larger * (size + 1)
    first = leaf[:end].unflatten(0, (larger, 1, size + 1)).unbind()
    return [*first, *leaf[end:].unflatten(0, (parts - larger, 1, size)).unbind()]


def zip_branches(columns: list[Sequence[Tree]], parts: int) -> list[tuple[Tree, ...]]:
    """Transpose columns of `parts` entries each; an empty list gives `parts` empty rows."""
    return list(zip(*columns, strict=True)) if columns else [()] * parts


def flatten_time(tree: Tree) -> Tree:
    """Return the tree with every leaf [T, B, ...] reshaped to [T * B, ...]."""
    return tree_map(lambda x: x.flatten(0, 1), tree)
