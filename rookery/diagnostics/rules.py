"""Rules that find faults in the figures of a run, each a pure function of its history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rookery.diagnostics.history import History

MEASURED = "measured on the runs of benchmarks/faults.py"
LEARNING = ("not_learning", "value_not_learned")
"""Rules whose symptoms nearly every fault has."""
LEAST_MEASUREMENTS = 3
"""Reports with a figure before a rule judges it."""


class Symptom(NamedTuple):
    """A figure that a rule objects to."""

    column: str
    """Column of progress.csv, or setting, that it rests on."""
    figure: float
    step: int
    """Step since which it is so."""
    text: str


class Rule(NamedTuple):
    """A fault and how it is found."""

    name: str
    is_trap: bool
    """True if it can also be found while the run goes on."""
    source: str
    """Paper or measurement that the rule and its threshold rest on."""
    remedy: str
    explains: tuple[str, ...]
    """Rules whose symptoms follow from this fault."""
    find: Callable[[History], Symptom | None]


class RunFinding(NamedTuple):
    """A fault that was found in a run."""

    rule: str
    column: str
    figure: float
    step: int
    text: str
    remedy: str
    source: str

    @property
    def line(self) -> str:
        """The finding in a line."""
        return f"{self.rule}: {self.text} (since step {self.step:,})"


RUN_RULES: dict[str, Rule] = {}
"""All rules, the most important first: causes before their symptoms."""


def rule(
    name: str, *, remedy: str, source: str, trap: bool = False, explains: tuple[str, ...] = ()
) -> Callable[[Callable[[History], Symptom | None]], Callable[[History], Symptom | None]]:
    """Decorator that adds a function to the rules; one of the same name is replaced."""

    def add(find: Callable[[History], Symptom | None]) -> Callable[[History], Symptom | None]:
        RUN_RULES[name] = Rule(name, trap, source, remedy, explains, find)
        return find

    return add


def find_faults(history: History, names: Mapping[str, Any] | None = None) -> list[RunFinding]:
    """Return what the rules find, the most important first; symptoms of a fault that was found are
    left out. With `names` only these rules are asked."""
    found: dict[str, RunFinding] = {}
    explained: set[str] = set()
    for name, each in RUN_RULES.items():
        if names is not None and name not in names:
            continue
        symptom = each.find(history)
        if symptom is not None:
            found[name] = RunFinding(name, *symptom, each.remedy, each.source)
            explained |= set(each.explains)
    return [finding for name, finding in found.items() if name not in explained]


def all_equal(values: np.ndarray, to: float | None = None) -> bool:
    """True if there are enough values and all of them are equal, to `to` if given."""
    if len(values) < LEAST_MEASUREMENTS:
        return False
    return bool((values == (values[0] if to is None else to)).all())
