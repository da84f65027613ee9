"""Nested dicts and tuples of arrays, handled leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        mapped = [tree_map(fn, *leaves) for leaves in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return fn(tree, *rest)


def leaves(tree: Tree) -> Iterator[Any]:
    """The arrays of a tree, in a fixed order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def to_tensors(tree: Tree, device: torch.device) -> Tree:
    """Arrays as tensors on `device`; on the CPU they share memory with the arrays."""
    return tree_map(lambda x: torch.as_tensor(x, device=device), tree)


def new_rows(example: Tree, rows: int) -> Tree:
    """Empty CPU tensors [rows, *leaf.shape] for each leaf of `example`."""

    def empty(leaf: Any) -> Tensor:
        tensor = torch.as_tensor(leaf)
        return torch.empty((rows, *tensor.shape), dtype=tensor.dtype)

    return tree_map(empty, example)


def write_row(rows: Tree, index: int, value: Tree) -> None:
    """Copy `value` into row `index`, so that later reuse of its buffers does no harm."""
    if isinstance(rows, Tensor):
        rows[index] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    else:
        tree_map(lambda row, leaf: write_row(row, index, leaf), rows, value)


def map_batch(tree: Tree, index: Tensor | slice) -> Tree:
    """Columns `index` of every leaf [T, B, ...]."""
    return tree_map(lambda x: x[:, index], tree)


def flatten_time(tree: Tree) -> Tree:
    """Every leaf [T, B, ...] as [T * B, ...]."""
    return tree_map(lambda x: x.flatten(0, 1), tree)
