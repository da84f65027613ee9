"""Nested dicts and tuples of arrays, handled leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any
"""An array, or a nested dict or tuple of arrays."""


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """`fn` over the leaves of trees of one shape."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, tree[key], *(r[key] for r in rest)) for key in tree}
    if isinstance(tree, tuple):
        mapped = [tree_map(fn, *parts) for parts in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves, in order."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    return [tree]


def tree_replace(tree: Tree, leaves: Mapping[tuple[Any, ...], Any]) -> Tree:
    """The tree with other leaves at the paths named: the keys and places that lead to them."""
    for path, leaf in leaves.items():
        tree = with_leaf(tree, path, leaf)
    return tree


def with_leaf(tree: Tree, path: tuple[Any, ...], leaf: Any) -> Tree:
    """The tree with another leaf at a path."""
    if not path:
        return leaf
    key, *rest = path
    if isinstance(tree, dict):
        return {**tree, key: with_leaf(tree[key], tuple(rest), leaf)}
    return (*tree[:key], with_leaf(tree[key], tuple(rest), leaf), *tree[key + 1 :])


def to_tensors(tree: Tree, device: torch.device) -> Tree:
    """Arrays as tensors on `device`; on the CPU they share memory with the arrays."""
    if isinstance(tree, np.ndarray) and device.type == "cpu":
        return torch.from_numpy(tree)
    return tree_map(lambda x: torch.as_tensor(x, device=device), tree)


def map_batch(tree: Tree, index: Tensor | slice) -> Tree:
    """Columns `index` of every leaf [T, B, ...]."""
    return tree_map(lambda x: x[:, index], tree)


Split = Callable[[Tensor], Sequence[Tensor]]
"""What makes several tensors of one."""


def tree_split(tree: Tree, parts: int, split: Split) -> Sequence[Tree]:
    """So many trees, with the parts that `split` makes of every leaf."""
    if isinstance(tree, dict):
        columns = [tree_split(branch, parts, split) for branch in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in side_by_side(columns, parts)]
    if isinstance(tree, tuple):
        rows = side_by_side([tree_split(branch, parts, split) for branch in tree], parts)
        return [type(tree)(*row) for row in rows] if hasattr(tree, "_fields") else rows
    return split(tree)


def rows_apart(leaf: Tensor, parts: int) -> list[Tensor]:
    """Rows [N, ...] in so many parts [1, M, ...], as equal as can be: those of one size are alike
    in their strides too."""
    size, larger = divmod(len(leaf), parts)
    end = larger * (size + 1)
    first = leaf[:end].unflatten(0, (larger, 1, size + 1)).unbind()
    return [*first, *leaf[end:].unflatten(0, (parts - larger, 1, size)).unbind()]


def side_by_side(columns: list[Sequence[Tree]], parts: int) -> list[tuple[Tree, ...]]:
    """What the columns hold side by side; without a column, nothing, so many times."""
    return list(zip(*columns, strict=True)) if columns else [()] * parts


def flatten_time(tree: Tree) -> Tree:
    """Every leaf [T, B, ...] as [T * B, ...]."""
    return tree_map(lambda x: x.flatten(0, 1), tree)
