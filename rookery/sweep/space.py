"""What is searched: ranges and choices of settings, from text or YAML."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
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
"""How a searched setting is written, by its kind."""
DIGITS = 4
"""Significant digits of a drawn number: enough to search, and short enough to read."""
MOST_POINTS = 10_000
"""Points of the largest grid."""

Values = dict[str, Any]
"""A point: settings by their dotted names."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both among them, drawn evenly or evenly in their logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, at: float) -> float:
        """The number at a share `at` in [0, 1) of the range."""
        # A whole number stands for the numbers that round to it.
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** at if self.log else low + at * (high - low)
        return self.tidy(value)

    def tidy(self, value: float) -> float:
        """The number as it is used: whole or with few digits, and inside the range."""
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def probes(self) -> list[Any]:
        """Values that must be allowed if all are."""
        return [self.low, self.high, self.draw(0.37)]

    def grid(self) -> list[Any] | None:
        """All values, if they can be counted."""
        if not self.whole or self.high - self.low >= MOST_POINTS:
            return None
        return list(range(int(self.low), int(self.high) + 1))

    @property
    def kind(self) -> str:
        """What it is called."""
        if self.whole:
            return "logint" if self.log else "int"
        return "log" if self.log else "uniform"

    def written(self) -> dict[str, list[Any]]:
        """As YAML and JSON have it."""
        return {self.kind: [self.low, self.high]}

    def __str__(self) -> str:
        return f"{self.kind}:{spell(self.low)}:{spell(self.high)}"


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    def draw(self, at: float) -> Any:
        """The value at a share `at` in [0, 1) of the list."""
        return self.values[int(at * len(self.values))]

    def probes(self) -> list[Any]:
        """All values."""
        return list(self.values)

    def grid(self) -> list[Any] | None:
        """All values."""
        return list(self.values)

    def written(self) -> dict[str, list[Any]]:
        """As YAML and JSON have it."""
        return {"choice": list(self.values)}

    def __str__(self) -> str:
        return "choice:" + ",".join(map(spell, self.values))


Dimension = Range | Choice
Space = dict[str, Dimension]


def spell(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, list | tuple):
        return "x".join(map(spell, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def parse(name: str, value: Any) -> Dimension | None:
    """The range or choice that `value` describes: text, or from YAML `{log: [1e-5, 1e-2]}`. None
    for a plain value."""
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in FORMS:
        ((kind, items),) = value.items()
        items = items if isinstance(items, list) else [items]
    elif isinstance(value, str) and value.partition(":")[0] in FORMS and ":" in value:
        kind, _, text = value.partition(":")
        items = text.split("," if kind == "choice" else ":")
    else:
        return None
    items = [item.strip() if isinstance(item, str) else item for item in items]
    return parse_choice(name, items) if kind == "choice" else parse_range(name, kind, items)


def parse_choice(name: str, items: list[Any]) -> Choice:
    """A choice of two values or more."""
    require("" not in items, f"{name}: a value of {FORMS['choice']} is empty")
    require(len(items) > 1, f"{name}: a choice has two values or more, got {items!r}")
    return Choice(tuple(items))


def parse_range(name: str, kind: str, items: list[Any]) -> Range:
    """A range whose ends make sense."""
    try:
        low, high = (float(item) for item in items)
    except (TypeError, ValueError):
        got = ":".join(map(str, items))
        raise BadInput(f'{name}: expected {FORMS[kind]}, got "{kind}:{got}"') from None
    shown = f"{kind}:{low:g}:{high:g}"
    require(math.isfinite(low) and math.isfinite(high), f"{name}: {shown} has no end")
    require(low < high, f"{name}: {shown} must go from the lower to the higher value")
    log, whole = kind.startswith("log"), kind.endswith("int")
    require(not log or low > 0, f"{name}: {shown} must begin above 0; use uniform or int")
    if whole:
        both = low.is_integer() and high.is_integer()
        require(both, f"{name}: {shown} must have whole numbers as its ends")
        low, high = int(low), int(high)
    return Range(low, high, log, whole)


def split(settings: Mapping[str, Any]) -> tuple[Values, Space]:
    """Fixed settings, and those to search."""
    fixed, space = {}, {}
    for name, value in settings.items():
        dimension = parse(name, value)
        if dimension is None:
            fixed[name] = value
        else:
            space[name] = dimension
    return fixed, space


def hint_at_forms(name: str, value: Any, error: BadInput) -> BadInput:
    """The error about a fixed value, with the forms there are if it looks like one of them."""
    kind = re.match(r"([a-z_]+):", value) if isinstance(value, str) else None
    if kind is None or name not in str(error):
        return error
    return BadInput(f"{error}. A space is one of {', '.join(FORMS.values())}")


def check(
    space: Space, settings: Mapping[str, FieldInfo], resolve: Callable[[Values], Any]
) -> Space:
    """The space with every value as its setting has it; BadInput names one that is refused.

    `resolve` makes a config of values; a value counts as refused if it is so beside the first
    and beside the last values of the other settings.
    """
    checked: Space = {}
    for name, dimension in space.items():
        if isinstance(dimension, Range):
            check_kind(name, dimension, settings.get(name))
        others = [
            {key: other.probes()[end] for key, other in space.items() if key != name}
            for end in (0, -1)
        ]
        values = [
            value_of(allowed({name: probe}, others, resolve), name) for probe in dimension.probes()
        ]
        if isinstance(dimension, Choice):
            twice = [value for at, value in enumerate(values) if value in values[:at]]
            require(not twice, f"{name}: {twice[0] if twice else ''} is given twice")
            dimension = Choice(tuple(values))
        checked[name] = dimension
    return checked


def check_kind(name: str, dimension: Range, info: FieldInfo | None) -> None:
    """BadInput for a range of fractions where whole numbers are asked for."""
    if info is None:  # no such setting, as making a config will tell
        return
    kinds = set(typing.get_args(info.hint)) or {info.hint}
    whole_only = int in kinds and float not in kinds
    if whole_only and not dimension.whole:
        other = dataclasses.replace(dimension, whole=True)
        raise BadInput(f"{name}: takes whole numbers; use {other}")


def allowed(value: Values, others: list[Values], resolve: Callable[[Values], Any]) -> Any:
    """The config with `value` beside any of `others`; BadInput of the first if none takes it."""
    refusals = []
    for beside in others:
        try:
            return resolve(beside | value)
        except BadInput as error:
            refusals.append(error)
    raise refusals[0]


def value_of(config: Any, name: str) -> Any:
    """A setting of a config by its dotted name, as JSON has it."""
    for part in name.split("."):
        config = config[part] if isinstance(config, Mapping) else getattr(config, part)
    return list(config) if isinstance(config, tuple) else config


def grid_points(space: Space) -> list[Values]:
    """Every combination; BadInput for a range that cannot be counted, or too many points."""
    values = {}
    for name, dimension in space.items():
        found = dimension.grid()
        if found is None:
            raise BadInput(
                f"{name}: {dimension} has no end of values for a grid; use {FORMS['choice']}, or"
                " another --search"
            )
        values[name] = found
    count = math.prod(map(len, values.values()))
    require(count <= MOST_POINTS, f"search: a grid of {count:,} points; {MOST_POINTS:,} at most")
    return list(combinations(values))


def combinations(values: Mapping[str, list[Any]]) -> Iterator[Values]:
    """Every combination, the last setting changing fastest."""
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))
