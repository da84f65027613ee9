"""Search spaces: ranges and choices of settings, parsed from text or YAML."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rookery.errors import BadInput, require
from rookery.fields import FieldInfo

FORMS = {
    "log": "log:LOW:HIGH",
    "uniform": "uniform:LOW:HIGH",
    "logint": "logint:LOW:HIGH",
    "int": "int:LOW:HIGH",
    "choice": "choice:A,B,C",
}
"""Text form of a search space, by its kind."""
DIGITS = 4
"""Significant digits of a drawn number: enough for a search, and easy to read."""
MOST_POINTS = 10_000
"""Most points of a grid."""

Values = dict[str, Any]
"""A point: settings by their dotted names."""


@dataclass(frozen=True)
class Range:
    """Numbers in [low, high], uniform or log-uniform, real or whole."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, at: float) -> float:
        """Return the quantile `at` in [0, 1)."""
        # Each whole number gets the interval of real numbers that round to it.
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** at if self.log else low + at * (high - low)
        return self.tidy(value)

    def tidy(self, value: float) -> float:
        """Return `value` rounded, and clipped to the range."""
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def probes(self) -> list[Any]:
        """Return a few values to check the range with: both ends and one between."""
        return [self.low, self.high, self.draw(0.37)]

    def grid(self) -> list[Any] | None:
        """Return all values, or None for a range of real numbers or a very large one."""
        if not self.whole or self.high - self.low >= MOST_POINTS:
            return None
        return list(range(int(self.low), int(self.high) + 1))

    @property
    def kind(self) -> str:
        """Key of FORMS."""
        if self.whole:
            return "logint" if self.log else "int"
        return "log" if self.log else "uniform"

    def written(self) -> dict[str, list[Any]]:
        """Return the form for YAML and JSON."""
        return {self.kind: [self.low, self.high]}

    def __str__(self) -> str:
        return f"{self.kind}:{spell(self.low)}:{spell(self.high)}"


@dataclass(frozen=True)
class Choice:
    """One of several values; methods as of Range."""

    values: tuple[Any, ...]

    def draw(self, at: float) -> Any:
        """Return the value at the fraction `at` in [0, 1) of the list."""
        return self.values[int(at * len(self.values))]

    def probes(self) -> list[Any]:
        return list(self.values)

    def grid(self) -> list[Any] | None:
        return list(self.values)

    def written(self) -> dict[str, list[Any]]:
        return {"choice": list(self.values)}

    def __str__(self) -> str:
        return "choice:" + ",".join(map(spell, self.values))


Dimension = Range | Choice
Space = dict[str, Dimension]


def spell(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, list | tuple):
        return "x".join(map(spell, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def parse_dimension(name: str, value: Any) -> Dimension | None:
    """Return the Range or Choice described by text or by YAML such as `{log: [1e-5, 1e-2]}`; None
    for a fixed value."""
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in FORMS:
        ((kind, items),) = value.items()
        items = items if isinstance(items, list) else [items]
    elif isinstance(value, str) and value.partition(":")[0] in FORMS and ":" in value:
        kind, _, text = value.partition(":")
        items = text.split("," if kind == "choice" else ":")
    else:
        return None
    items = [item.strip() if isinstance(item, str) else item for item in items]
    if kind != "choice":
        return parse_range(name, kind, items)
    require("" not in items, f"{name}: a value of {FORMS['choice']} is empty")
    require(len(items) > 1, f"{name}: a choice needs two values or more, got {items!r}")
    return Choice(tuple(items))


def parse_range(name: str, kind: str, items: list[Any]) -> Range:
    """Return a Range; raise BadInput if its ends are invalid."""
    try:
        low, high = (float(item) for item in items)
    except (TypeError, ValueError):
        got = ":".join(map(str, items))
        raise BadInput(f'{name}: expected {FORMS[kind]}, got "{kind}:{got}"') from None
    shown = f"{kind}:{low:g}:{high:g}"
    require(math.isfinite(low) and math.isfinite(high), f"{name}: {shown} is not finite")
    require(low < high, f"{name}: {shown}: LOW must be below HIGH")
    log, whole = kind.startswith("log"), kind.endswith("int")
    require(not log or low > 0, f"{name}: {shown}: LOW must be above 0; use uniform or int")
    if whole:
        are_whole = low.is_integer() and high.is_integer()
        require(are_whole, f"{name}: {shown} needs whole numbers")
        low, high = int(low), int(high)
    return Range(low, high, log, whole)


def split_settings(settings: Mapping[str, Any]) -> tuple[Values, Space]:
    """Return the fixed settings and the searched ones."""
    parsed = {name: parse_dimension(name, value) for name, value in settings.items()}
    space = {name: dimension for name, dimension in parsed.items() if dimension is not None}
    return {name: value for name, value in settings.items() if name not in space}, space


def check_space(
    space: Space, settings: Mapping[str, FieldInfo], resolve: Callable[[Values], Any]
) -> Space:
    """Return the space with choices converted to the types of their settings; raise BadInput for
    an invalid value.

    `resolve` makes a config of a point. Some values are valid only in combination: one is invalid
    if it is refused both with the first and with the last values of the other settings.
    """
    checked: Space = {}
    for name, dimension in space.items():
        # Of an unknown setting, making the config raises the error.
        hint = settings[name].hint if name in settings else None
        kinds = set(typing.get_args(hint)) or {hint}
        whole_only = int in kinds and float not in kinds
        if isinstance(dimension, Range) and whole_only and not dimension.whole:
            other = dataclasses.replace(dimension, whole=True)
            raise BadInput(f"{name}: takes whole numbers; use {other}")
        others = [
            {key: other.probes()[end] for key, other in space.items() if key != name}
            for end in (0, -1)
        ]
        configs = [first_accepted({name: probe}, others, resolve) for probe in dimension.probes()]
        values = [setting_value(config, name) for config in configs]
        if isinstance(dimension, Choice):
            twice = [value for at, value in enumerate(values) if value in values[:at]]
            require(not twice, f"{name}: {twice[0] if twice else ''} is given twice")
            dimension = Choice(tuple(values))
        checked[name] = dimension
    return checked


def first_accepted(value: Values, others: list[Values], resolve: Callable[[Values], Any]) -> Any:
    """Return the config of `value` with the first of `others` that is valid; raise the first error
    if none is."""
    refusals = []
    for beside in others:
        try:
            return resolve(beside | value)
        except BadInput as error:
            refusals.append(error)
    raise refusals[0]


def setting_value(config: Any, name: str) -> Any:
    """Return a setting of a config by its dotted name; tuples become lists, as in JSON."""
    for part in name.split("."):
        config = config[part] if isinstance(config, Mapping) else getattr(config, part)
    return list(config) if isinstance(config, tuple) else config


def grid_points(space: Space) -> list[Values]:
    """Return every combination; raise BadInput for real numbers or for too many points."""
    values = {}
    for name, dimension in space.items():
        found = dimension.grid()
        if found is None:
            raise BadInput(
                f"{name}: {dimension} has too many values for a grid; use {FORMS['choice']}, or"
                " another --search"
            )
        values[name] = found
    count = math.prod(map(len, values.values()))
    require(
        count <= MOST_POINTS,
        f"search: a grid of {count:,} points; the limit is {MOST_POINTS:,}",
    )
    points = itertools.product(*values.values())
    return [dict(zip(values, point, strict=True)) for point in points]
