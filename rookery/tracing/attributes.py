"""Attributes of an object, watched for changes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import nn

SCALARS = (
    *(int, float, complex, str, bytes, type(None), type, Enum, np.generic),
    *(torch.dtype, torch.device, torch.layout),
)
UNSEEN = object()


def plain(value: Any) -> bool:
    """True if a value never changes and its `repr` says all of it."""
    if isinstance(value, tuple):
        return all(map(plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(plain(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, SCALARS)


class Attributes:
    """The attributes of an object, whose values together make a state, known by a number.

    Plain values are the same if they look the same, other objects if they are the same object: what
    changes inside a list is not seen. Modules do not count, nor do cached properties, which follow
    from the rest and are there only once somebody has asked.
    """

    def __init__(self, owner: object | None):
        self.kind = type(owner)
        self.now: dict[str, Any] = {} if owner is None else vars(owner)
        self.last: dict[str, Any] = {}
        self.marks: dict[str, Any] = {}
        """What tells the last value of an attribute from others, by its name."""
        self.kept: dict[int, Any] = {}
        """Objects that are known by their ids, which nothing else may get."""
        self.states: dict[frozenset[Any], int] = {frozenset(): 0}
        self.number = 0
        self.changed = ""
        """The names of the attributes that changed last."""

    def state(self) -> int:
        """The number of the state that the attributes are in."""
        now, last = self.now, self.last
        if len(now) != len(last) or not all(map(is_, now.values(), last.values())):
            self.look()
        return self.number

    def look(self) -> None:
        """Note what changed."""
        before, self.last = self.last, self.now.copy()
        marks = {
            name: self.marks[name] if before.get(name, UNSEEN) is value else self.mark(value)
            for name, value in self.last.items()
            if self.counts(name, value)
        }
        changed = marks.items() ^ self.marks.items()
        if changed:
            self.changed = ", ".join(sorted({name for name, _ in changed}))
        self.marks = marks
        self.number = self.states.setdefault(frozenset(marks.items()), len(self.states))

    def counts(self, name: str, value: Any) -> bool:
        """True if the attribute is part of the state."""
        cached = isinstance(getattr(self.kind, name, None), cached_property)
        return not cached and not isinstance(value, nn.Module)

    def mark(self, value: Any) -> Any:
        """What tells the value from others."""
        if plain(value):
            return repr(value)
        self.kept[id(value)] = value
        return id(value)
