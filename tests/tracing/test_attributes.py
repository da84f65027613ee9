"""Attributes of an object are told apart by value where that is all there is to them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import nn

from rookery.tracing.attributes import Attributes


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
    watched = Attributes(owner)
    states = []
    for value in (one, other, one, other):
        owner.value = value
        states.append(watched.state())
    assert states[0] != states[1]
    assert states[:2] == states[2:]
    assert watched.changed == "value"


@pytest.mark.parametrize("make", [lambda: float("0.25"), lambda: float("nan"), lambda: Settings(3)])
def test_equal_values_make_one_state(make):
    owner = Owner()
    watched = Attributes(owner)
    states = set()
    for _ in range(3):
        owner.value = make()
        states.add(watched.state())
    assert len(states) == 1


def test_modules_and_cached_properties_do_not_count():
    owner = Owner()
    owner.value, owner.module = 1, nn.Linear(1, 1)
    watched = Attributes(owner)
    state = watched.state()
    owner.module = nn.Linear(1, 1)
    assert watched.state() == state
    assert owner.lazy == []
    assert watched.state() == state


def test_an_attribute_that_comes_and_goes_makes_another_state():
    owner = Owner()
    watched = Attributes(owner)
    states = [watched.state()]
    owner.value = 1
    states.append(watched.state())
    del owner.value
    owner.other = 2
    states.append(watched.state())
    del owner.other
    assert len(set(states)) == 3
    assert watched.state() == states[0]
