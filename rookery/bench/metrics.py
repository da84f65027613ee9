"""Extract metrics from the output of a command, and summarize repeated measurements."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rookery.bench.spec import DURATION, Benchmark, Metric
from rookery.bench.variants import Value
from rookery.errors import BadInput, require

GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
"""A number with thousands separators, as in 12,345.6"""
MIN_FOR_INTERVAL = 6
"""Fewest values with a 95 % interval of the median: 5 give 1 - 2 x 0.5^5 = 94 % at most."""


def measure(
    benchmark: Benchmark, stdout: str, stderr: str, duration: float, values: Mapping[str, Value]
) -> dict[str, float]:
    """Return all metrics of a command that succeeded; BadInput names one that is missing."""
    assert benchmark.settings is not None
    found: dict[str, float] = {}
    for name, metric in benchmark.settings.data.items():
        try:
            if metric.json is not None:
                found[name] = by_path(metric.json, printed_json(stdout))
            else:
                found[name] = by_regexp(metric, f"{stdout}\n{stderr}")
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
    known: dict[str, float] = {}
    for name, value in values.items():  # text counts too if it reads as a number: YAML's 1e6
        with suppress(ValueError, OverflowError):
            if value is not None and not isinstance(value, bool) and math.isfinite(float(value)):
                known[name] = float(value)
    known |= found | {DURATION: duration}
    for name, formula in benchmark.formulas.items():
        try:
            for used in formula.names & set(values):
                require(used in known, f'parameter "{used}" is {values[used]!r}, not a number')
            found[name] = known[name] = formula.evaluate(known)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
    return found


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


def by_path(path: str, printed: Any) -> float:
    value = at_path(printed, path)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    require(known, f"{path} is {json.dumps(value)[:80]}, not a number")
    try:
        return check_finite(float(value), path)
    except OverflowError:
        raise BadInput(f"{path} is too large a number") from None


def check_finite(number: float, what: str) -> float:
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
        if not there:
            inside = f" in {passed}" if passed else ""
            raise BadInput(f'{path} not found: no "{step}"{inside}{_contents(value)}')
        value = value[step if index is None else index]
        passed += step if index is not None or not passed else f".{step}"
    return value


def _contents(value: Any) -> str:
    """Return what a JSON value contains, for an error message."""
    if isinstance(value, dict) and value:
        names = list(value)
        return f"; found {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    return f"; it has {len(value)} items" if isinstance(value, list) else ""


class Summary(NamedTuple):
    """The median of some values, and an interval around it."""

    median: float
    low: float
    high: float


def kind_of_interval(count: int) -> str:
    """Return the name of the interval that `summarize` computes for so many values."""
    return "95 % interval of the median" if count >= MIN_FOR_INTERVAL else "min..max"


def summarize(values: Sequence[float]) -> Summary:
    """Return the median with its 95 % interval; of fewer than six values, with min and max.

    The interval goes from the k-th smallest to the k-th largest. The median of the distribution
    is below the k-th smallest of n if fewer than k fall below it: P(Binomial(n, 1/2) < k).
    """
    ordered, n = sorted(values), len(values)
    k, below = 1, 1.0  # `below`: 2^n P(Binomial(n, 1/2) < k)
    while n >= MIN_FOR_INTERVAL and below + math.comb(n, k) <= 0.025 * 2**n:
        below += math.comb(n, k)
        k += 1
    return Summary(statistics.median(ordered), ordered[k - 1], ordered[n - k])
