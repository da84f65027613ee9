"""How good a trial is while it goes: the mean over its seeds at equal steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rookery.errors import RookeryError, nearest
from rookery.runs.table import Row, number

REPORTS = 20
"""Reports of a trial over its length."""

Point = tuple[float, float]


class Seed(NamedTuple):
    """A run of a trial: its reports so far, and whether it is over."""

    rows: Sequence[Row]
    over: bool

    @property
    def reached(self) -> int:
        """Steps of the last report."""
        return int(number(self.rows[-1], "env_steps")) if self.rows else 0


class Score(NamedTuple):
    """A trial at a number of steps: the mean over its seeds, and each of them."""

    env_steps: int
    mean: float
    seeds: list[float]


def rungs(env_steps: int, grace_steps: int, reduction: float) -> list[int]:
    """The steps at which ASHA compares trials."""
    powers = (math.ceil(grace_steps * reduction**k) for k in itertools.count())
    return list(itertools.takewhile(lambda steps: steps < env_steps, powers))


def marks(env_steps: int, compared: Sequence[int] = ()) -> list[int]:
    """The steps at which a trial reports before its end: evenly spread, and where trials are
    compared."""
    even = {env_steps * part // REPORTS for part in range(1, REPORTS)}
    return sorted({mark for mark in even | set(compared) if 0 < mark < env_steps})


def passed(seeds: Sequence[Seed], env_steps: int) -> bool:
    """Whether every run is over or at least that far."""
    return all(seed.over or seed.reached >= env_steps for seed in seeds)


def at_steps(seeds: Sequence[Seed], metric: str, env_steps: int) -> Score | None:
    """The score of runs that came that far; None if one had no value yet."""
    values = [value_at(seed.rows, metric, env_steps) for seed in seeds]
    known = [value for value in values if value is not None]
    return Score(env_steps, statistics.fmean(known), known) if len(known) == len(seeds) else None


def at_end(seeds: Sequence[Seed], metric: str) -> Score:
    """The score of runs that are over, from the last value of each; RookeryError without one."""
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
    """The metric at a number of steps, on a line between the reports around it; after the last
    report its value, before the first None."""
    before: Point | None = None
    for row in rows:
        if row.get(metric) is None:
            continue
        here = number(row, "env_steps"), number(row, metric)
        if here[0] == env_steps:
            return here[1]
        if here[0] > env_steps:
            return None if before is None else between(before, here, env_steps)
        before = here
    return None if before is None else before[1]


def between(before: Point, after: Point, at: int) -> float:
    """The value at `at` on the line through two points."""
    share = (at - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])


def no_value(rows: Sequence[Row], metric: str) -> str:
    """Why a run has no value of the metric."""
    columns = list(rows[-1]) if rows else []
    if metric in columns:
        return f'metric: "{metric}" has no value in any report'
    return f'metric: there is no column "{metric}" in progress.csv.{nearest(metric, columns)}'
