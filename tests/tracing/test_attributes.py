"""Attributes of an object are told apart by value where that is all there is to them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import nn

from rookery.tracing import TracedFunction


@dataclass(frozen=True)
class Settings:
    k: float = 1.0


class Owner:
    value = None

    @cached_property
    def lazy(self):
        return []


ZERO = torch.zeros(())
PAIRS = [
    (1, 2),
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (None, 0),
    ("a", "b"),
    ((1, 2), (1, 3)),
    (Settings(1.0), Settings(2.0)),
    (np.float32(1), np.float64(1)),
    (ZERO, ZERO.clone()),
    ([1], [1]),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_other_values_make_another_state(one, other):
    owner = Owner()
    watched = TracedFunction(print, owner=owner)
    states = []
    for value in (one, other, one, other):
        owner.value = value
        states.append(watched.owner_values())
    assert states[0] != states[1]
    assert states[:2] == states[2:]
    assert {name for name, _ in states[0] ^ states[1]} == {"value"}


@pytest.mark.parametrize("make", [lambda: float("0.25"), lambda: float("nan"), lambda: Settings(3)])
def test_equal_values_make_one_state(make):
    owner = Owner()
    watched = TracedFunction(print, owner=owner)
    states = set()
    for _ in range(3):
        owner.value = make()
        states.add(watched.owner_values())
    assert len(states) == 1


def test_modules_and_cached_properties_do_not_count():
    owner = Owner()
    owner.value, owner.module = 1, nn.Linear(1, 1)
    watched = TracedFunction(print, owner=owner)
    state = watched.owner_values()
    owner.module = nn.Linear(1, 1)
    assert watched.owner_values() == state
    assert owner.lazy == []
    assert watched.owner_values() == state


def test_an_attribute_that_comes_and_goes_makes_another_state():
    owner = Owner()
    watched = TracedFunction(print, owner=owner)
    states = [watched.owner_values()]
    owner.value = 1
    states.append(watched.owner_values())
    del owner.value
    owner.other = 2
    states.append(watched.owner_values())
    del owner.other
    assert len(set(states)) == 3
    assert watched.owner_values() == states[0]
