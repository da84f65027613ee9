"""Trees of tensors."""

from typing import NamedTuple

import torch

from rookery.data.tree import tree_split


class Pair(NamedTuple):
    obs: dict
    extra: dict


def test_parts_of_a_tree_are_trees_of_parts():
    x = torch.arange(12).view(2, 6)
    tree = Pair({"a": x, "b": (x + 100, ())}, {})
    first, second, third = tree_split(tree, 3, 1)
    assert isinstance(second, Pair)
    assert first.obs["a"].tolist() == [[0, 1], [6, 7]]
    assert second.obs["b"][0].tolist() == [[102, 103], [108, 109]]
    assert second.obs["b"][1] == ()
    assert third.extra == {}
    assert third.obs["a"].tolist() == [[4, 5], [10, 11]]


def test_nothing_is_split_into_nothings():
    assert tree_split((), 2, 0) == [(), ()]
    assert tree_split({}, 2, 0) == [{}, {}]
