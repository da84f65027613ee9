"""Rules that find faults in the figures of a run, each a pure function of its history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


def all_equal(values: np.ndarray, to: float) -> bool:
    """True if there are enough values and all of them are `to`."""
    return len(values) >= LEAST_MEASUREMENTS and bool((values == to).all())
