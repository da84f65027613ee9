"""Splitting trees of tensors."""

from typing import NamedTuple

import pytest
import torch

from rookery.data.tree import split_rows, tree_split


class Pair(NamedTuple):
    obs: dict
    extra: dict


def test_tree_split_gives_trees_of_the_leaves_parts():
    x = torch.arange(12).view(2, 6)
    tree = Pair({"a": x, "b": (x + 100, ())}, {})
    first, second, third = tree_split(tree, 3, lambda x: x.tensor_split(3, 1))
    assert isinstance(second, Pair)
    assert first.obs["a"].tolist() == [[0, 1], [6, 7]]
    assert second.obs["b"][0].tolist() == [[102, 103], [108, 109]]
    assert second.obs["b"][1] == ()
    assert third.extra == {}
    assert third.obs["a"].tolist() == [[4, 5], [10, 11]]


def test_an_empty_tree_is_split_into_empty_trees():
    assert tree_split((), 2, torch.unbind) == [(), ()]
    assert tree_split({}, 2, torch.unbind) == [{}, {}]


@pytest.mark.parametrize(("rows", "parts"), [(6, 3), (7, 3), (8, 3), (5, 5), (4, 1), (3, 2)])
def test_split_rows_keeps_all_rows_and_parts_of_one_size_have_equal_strides(rows, parts):
    leaf = torch.arange(rows * 2).view(rows, 2)
    cut = split_rows(leaf, parts)
    assert len(cut) == parts
    assert torch.equal(torch.cat(cut, 1)[0], leaf)
    assert {part.shape[0] for part in cut} == {1}
    sizes = [part.shape[1] for part in cut]
    assert sizes == [len(x) for x in torch.arange(rows).tensor_split(parts)]
    assert len({(part.shape, part.stride()) for part in cut}) == len(set(sizes))
    whole = torch.arange(parts * sizes[0] * 2).view(-1, 2)
    assert split_rows(whole, parts)[0].stride() == cut[0].stride()
