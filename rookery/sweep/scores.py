"""Score of a trial: the mean of the metric over its seeds at equal environment steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rookery.errors import RookeryError, nearest
from rookery.runs.files import Row, number

REPORTS = 20
"""Number of reports of a trial, evenly spaced."""


class SeedProgress(NamedTuple):
    """The rows of progress.csv of one run of a trial; `is_over` once the run ended."""

    rows: Sequence[Row]
    is_over: bool

    @property
    def reached(self) -> int:
        """Environment steps of the last report."""
        return int(number(self.rows[-1], "env_steps")) if self.rows else 0


class Score(NamedTuple):
    """Score of a trial after `env_steps`: mean over the seeds, and the value of each seed."""

    env_steps: int
    mean: float
    seeds: list[float]


def rungs(env_steps: int, grace_steps: int, reduction: float) -> list[int]:
    """Return the environment steps at which ASHA compares trials."""
    powers = (math.ceil(grace_steps * reduction**k) for k in itertools.count())
    return list(itertools.takewhile(lambda steps: steps < env_steps, powers))


def report_steps(env_steps: int, compared: Sequence[int] = ()) -> list[int]:
    """Return the environment steps at which a trial reports before its end: evenly spaced, and
    those in `compared`."""
    even = {env_steps * part // REPORTS for part in range(1, REPORTS)}
    return sorted({mark for mark in even | set(compared) if 0 < mark < env_steps})


def passed(seeds: Sequence[SeedProgress], env_steps: int) -> bool:
    """True if every run ended or has made `env_steps` steps."""
    return all(seed.is_over or seed.reached >= env_steps for seed in seeds)


def at_steps(seeds: Sequence[SeedProgress], metric: str, env_steps: int) -> Score | None:
    """Return the score after `env_steps`; None if a run had no value of the metric by then."""
    values = [value_at(seed.rows, metric, env_steps) for seed in seeds]
    known = [value for value in values if value is not None]
    return Score(env_steps, statistics.fmean(known), known) if len(known) == len(seeds) else None


def at_end(seeds: Sequence[SeedProgress], metric: str) -> Score:
    """Return the score of runs that ended, from the last value of each; raise RookeryError if one
    has none."""
    values = []
    for seed in seeds:
        known = [number(row, metric) for row in seed.rows if row.get(metric) is not None]
        if not known:
            raise RookeryError(no_value(seed.rows, metric))
        values.append(known[-1])
    if not all(map(math.isfinite, values)):
        raise RookeryError(f"metric: {metric} ended at {', '.join(map(str, values))}")
    return Score(max(seed.reached for seed in seeds), statistics.fmean(values), values)


def value_at(rows: Sequence[Row], metric: str, env_steps: int) -> float | None:
    """Return the metric after `env_steps`, interpolated linearly between reports; the last value
    after the last report, None before the first."""
    before: tuple[float, float] | None = None
    for row in rows:
        if row.get(metric) is None:
            continue
        steps, value = number(row, "env_steps"), number(row, metric)
        if steps == env_steps:
            return value
        if steps > env_steps:
            if before is None:
                return None
            fraction = (env_steps - before[0]) / (steps - before[0])
            return before[1] + fraction * (value - before[1])
        before = steps, value
    return None if before is None else before[1]


def no_value(rows: Sequence[Row], metric: str) -> str:
    """Return the error message for a run without a value of the metric."""
    columns = list(rows[-1]) if rows else []
    if metric in columns:
        return f'metric: "{metric}" has no value in any report'
    return f'metric: there is no column "{metric}" in progress.csv.{nearest(metric, columns)}'
