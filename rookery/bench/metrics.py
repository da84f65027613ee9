"""Extract metrics from the output of a command."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rookery.bench.spec import DURATION, Benchmark, Metric
from rookery.bench.variants import Value
from rookery.errors import BadInput, require

GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
"""A number with thousands separators, as in 12,345.6"""


def measure(
    benchmark: Benchmark, stdout: str, stderr: str, duration: float, values: Mapping[str, Value]
) -> dict[str, float]:
    """Return all metrics of a command that succeeded; BadInput names one that is missing."""
    assert benchmark.settings is not None
    found: dict[str, float] = {}
    for name, metric in benchmark.settings.data.items():
        try:
            if metric.json is not None:
                number = json_number(at_path(printed_json(stdout), metric.json), metric.json)
            else:
                number = by_regexp(metric, f"{stdout}\n{stderr}")
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
        found[name] = number
    known = _numbers(values) | found | {DURATION: duration}
    for name, formula in benchmark.formulas.items():
        try:
            for used in formula.names & set(values):
                require(used in known, f'parameter "{used}" is {values[used]!r}, not a number')
            found[name] = known[name] = formula.evaluate(known)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
    return found


def _numbers(values: Mapping[str, Value]) -> dict[str, float]:
    """Return the parameters that are numbers, or text that reads as one, such as YAML's 1e6."""
    numbers = {}
    for name, value in values.items():
        try:
            number = math.nan if value is None or isinstance(value, bool) else float(value)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def by_regexp(metric: Metric, text: str) -> float:
    """Return the matches of the regexp, without the skipped ones, reduced to one number."""
    pattern = re.compile(metric.regexp or "", re.MULTILINE)
    matches = [match[1] for match in pattern.finditer(text)]
    skip = metric.skip or 0
    require(matches, f"the regexp {metric.regexp!r} matches nothing in the output")
    require(
        len(matches) > skip,
        f"the regexp {metric.regexp!r} matches {len(matches)} times, and {skip} are skipped",
    )
    numbers = [matched_number(match) for match in matches[skip:]]
    reduction = metric.reduction_type or "mean"
    try:
        return check_finite(REDUCTIONS[reduction](numbers), f"the {reduction}")
    except OverflowError:
        raise BadInput("the matches are too large to sum") from None


def _single(numbers: Sequence[float]) -> float:
    require(len(numbers) == 1, f"{len(numbers)} matches, but reduction_type value expects one")
    return numbers[0]


REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "final": lambda numbers: numbers[-1],
    "min": min,
    "max": max,
    "median": statistics.median,
    "value": _single,
}


def matched_number(text: str) -> float:
    """Return the number that a regexp's group matched, with or without thousands separators."""
    plain = text.replace(",", "") if text and GROUPED.fullmatch(text) else text
    try:
        return check_finite(float(plain), f"the match {text!r}")
    except (TypeError, ValueError):  # TypeError: a group that took no part in the match is None
        raise BadInput(f"the match {text!r} is not a number") from None


def json_number(value: Any, path: str) -> float:
    """Return a JSON value as a float; BadInput if it is not a number."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    require(known, f"{path} is {json.dumps(value)[:80]}, not a number")
    try:
        return check_finite(float(value), path)
    except OverflowError:
        raise BadInput(f"{path} is too large a number") from None


def check_finite(number: float, what: str) -> float:
    """Return `number`; BadInput if it is NaN or infinite."""
    require(math.isfinite(number), f"{what} is {number}, not a finite number")
    return number


def printed_json(stdout: str) -> Any:
    """Return standard output as JSON, or else the last JSON object in it that begins a line."""
    try:
        return json.loads(stdout)
    except (ValueError, RecursionError):
        pass
    decoder, position, found = json.JSONDecoder(), 0, None
    while match := re.compile(r"^\{", re.MULTILINE).search(stdout, position):
        try:
            found, position = decoder.raw_decode(stdout, match.start())
        except (ValueError, RecursionError):
            position = match.end()
    require(found is not None, "no JSON object on standard output")
    return found


def at_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path such as `rows[0].x`."""
    passed = ""
    for step in re.findall(r"\[-?\d+\]|[^.\[\]]+", path):
        index = int(step[1:-1]) if step.startswith("[") else None
        if index is None:
            there = isinstance(value, dict) and step in value
        else:
            there = isinstance(value, list) and -len(value) <= index < len(value)
        inside = f" in {passed}" if passed else ""
        require(there, f'{path} not found: no "{step}"{inside}{_contents(value)}')
        value = value[step if index is None else index]
        passed += step if index is not None or not passed else f".{step}"
    return value


def _contents(value: Any) -> str:
    """Return what a JSON value contains, for an error message."""
    if isinstance(value, dict) and value:
        names = list(value)
        return f"; found {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    return f"; it has {len(value)} items" if isinstance(value, list) else ""
