"""Detects changes of the attributes of an object."""

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
MISSING = object()


def is_plain(value: Any) -> bool:
    """True if a value cannot change and is fully described by its `repr`."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(is_plain(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, SCALARS)


class Attributes:
    """Numbers the states that the attributes of an object were in.

    Plain values are equal if their `repr` is, other objects only to themselves: a change inside a
    list is not detected. Modules do not count, nor do cached properties, which follow from the
    other attributes.
    """

    def __init__(self, owner: object | None):
        self.kind = type(owner)
        self.now: dict[str, Any] = {} if owner is None else vars(owner)
        self.last: dict[str, Any] = {}
        self.marks: dict[str, Any] = {}
        """The `repr` or the id of every attribute's last value."""
        self.kept: dict[int, Any] = {}
        """Objects that are known by their ids: kept, so that no other object gets the same id."""
        self.states: dict[frozenset[Any], int] = {frozenset(): 0}
        self.number = 0
        self.changed = ""
        """Names of the attributes that changed last."""

    def state(self) -> int:
        """Return the number of the current state."""
        now, last = self.now, self.last
        if len(now) != len(last) or not all(map(is_, now.values(), last.values())):
            self.update()
        return self.number

    def update(self) -> None:
        """Find out which attributes changed, and the number of the state."""
        before, self.last = self.last, self.now.copy()
        marks = {
            name: self.marks[name] if before.get(name, MISSING) is value else self.mark(value)
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
        is_cached = isinstance(getattr(self.kind, name, None), cached_property)
        return not is_cached and not isinstance(value, nn.Module)

    def mark(self, value: Any) -> Any:
        """Return what distinguishes the value from others."""
        if is_plain(value):
            return repr(value)
        self.kept[id(value)] = value
        return id(value)
