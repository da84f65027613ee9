"""Groups of runs that differ only in their seed, compared environment by environment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rookery.envs import human_score
from rookery.errors import nearest, require
from rookery.reports.comparison.runs import SEED, Axis, ComparedRun, find_runs, setting_text
from rookery.score_statistics import Estimate, estimate, probability_of_improvement

RETURN = "episode_return_mean"
POINTS = 200
"""Points at which the curves of seeds are combined."""


class Band(NamedTuple):
    """The interquartile mean of several curves with its interval, as far as all of them go."""

    x: np.ndarray
    estimate: Estimate
    runs: int


class RunGroup(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    runs: list[ComparedRun]

    def band(self, metric: str, axis: Axis, smooth: int = 1) -> Band | None:
        """Return the group's curve, from where its last run starts to where its first run ends;
        None if a run has no value on this axis."""
        curves = [run.curve(metric, axis, smooth) for run in self.runs]
        if not all(len(curve.x) for curve in curves):
            return None
        start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
        grid = np.linspace(start, max(start, end), POINTS)
        seeds = np.stack([np.interp(grid, c.x, c.y) for c in curves])
        return Band(grid, estimate(seeds), len(curves))

    def scores(self, metric: str) -> np.ndarray:
        """Return the last value of the metric of each run."""
        return np.array([run.known(metric)[-1] for run in self.runs])


class Parting(NamedTuple):
    """Two groups, and the point from which on their intervals no longer overlap."""

    one: str
    other: str
    at: float


@dataclass
class EnvironmentComparison:
    """The groups of one environment."""

    environment: str
    groups: list[RunGroup]
    metric: str
    smooth: int
    threshold: float | None
    """Value of the metric to reach."""
    random: float | None
    """Mean return of a random policy."""
    human: float | None
    """Score of a human tester."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each group: final score, speed, memory, and what the threshold took."""
        first = self.groups[0].scores(self.metric)
        rows = []
        for group in self.groups:
            scores = group.scores(self.metric)
            value, low, high = (float(x) for x in estimate(scores))
            row: dict[str, Any] = {
                "group": group.label,
                "runs": [str(run.run.path) for run in group.runs],
                "seeds": [run.config.get(SEED) for run in group.runs],
                "scores": scores.tolist(),
                "score": value,
                "low": low,
                "high": high,
                "better_than_first": probability_of_improvement(scores, first),
                "steps_per_second": float(np.median([run.speed for run in group.runs])),
                "peak_memory_mb": median_of(run.largest("memory_mb") for run in group.runs),
            }
            if self.threshold is not None:
                for axis in ("steps", "seconds"):
                    found = [run.reached(self.metric, axis, self.threshold) for run in group.runs]
                    row[f"{axis}_to_threshold"] = found
            rows.append(row)
        return rows

    def bands(self, axis: Axis) -> dict[str, Band]:
        """Return the curves of the groups that have values on this axis, by label."""
        bands = {group.label: group.band(self.metric, axis, self.smooth) for group in self.groups}
        return {label: band for label, band in bands.items() if band is not None}

    def partings(self, axis: Axis) -> list[Parting]:
        """Return the pairs of groups that part for good, and where."""
        pairs = combinations(self.bands(axis).items(), 2)
        found = [(a, b, parting(x, y)) for (a, x), (b, y) in pairs]
        return [Parting(a, b, at) for a, b, at in found if at is not None]

    def differences(self) -> dict[str, list[Any]]:
        """Return the settings in which groups differ, with the value of each group."""
        return differing_settings([group.runs[0] for group in self.groups])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the curves, for JSON."""
        return {
            "environment": self.environment,
            "metric": self.metric,
            "threshold": self.threshold,
            "random": self.random,
            "human": self.human,
            "groups": self.rows(),
            "differences": self.differences(),
            "partings": {
                axis: [parting._asdict() for parting in self.partings(axis)]
                for axis in ("steps", "seconds")
            },
        }


def compare_runs(
    paths: Sequence[str | Path],
    metric: str = RETURN,
    smooth: int = 1,
    threshold: float | None = None,
) -> list[EnvironmentComparison]:
    """Return the comparison of the runs in some folders, one for each environment."""
    require(smooth >= 1, f"smooth must be at least 1 report, got {smooth}")
    runs = find_runs(paths)
    known = dict.fromkeys(name for run in runs for name in run.columns)
    require(metric in known, f'metric: no run has a column "{metric}".{nearest(metric, known)}')
    runs = [run for run in runs if run.last(metric) is not None]
    require(runs, f'metric: no run has a value of "{metric}" yet')
    found = []
    for environment in dict.fromkeys(run.environment for run in runs):
        members = [run for run in runs if run.environment == environment]
        shows_return = "return" in metric
        goal = goal_of(members) if threshold is None and metric == RETURN else threshold
        found.append(
            EnvironmentComparison(
                *(environment, group_runs(members), metric, smooth, goal),
                random=median_of(r.last("random_return") for r in members)
                if shows_return
                else None,
                human=human_score(environment) if shows_return else None,
            )
        )
    return found


def group_runs(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    """Return the runs by algorithm and by the settings that all runs of the algorithm have, in the
    order of the first of each; a setting that an older version did not have makes no group."""
    members: dict[str, list[ComparedRun]] = {}
    for run in runs:
        alike = [other for other in runs if other.algorithm == run.algorithm]
        key = {name: run.settings[name] for name in differing_settings(alike)}
        text = json.dumps([run.algorithm, key], sort_keys=True)
        members.setdefault(text, []).append(run)
    groups = list(members.values())
    return [RunGroup(label, each) for label, each in zip(labels(groups), groups, strict=True)]


def labels(groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Return a name for each group: its algorithm, and the settings in which groups of the same
    algorithm differ."""
    found = []
    for run, *_ in groups:
        alike = [first for first, *_ in groups if first.algorithm == run.algorithm]
        own = (f"{name} {setting_text(run.settings[name])}" for name in differing_settings(alike))
        found.append(", ".join([run.algorithm, *own]))
    return found


def differing_settings(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """Return the settings that all runs have and that differ between them, with their values."""
    common = (
        name for name in runs[0].settings if all(name in other.settings for other in runs[1:])
    )
    values = {name: [run.settings[name] for run in runs] for name in common}
    return {name: each for name, each in values.items() if len(set(map(repr, each))) > 1}


def goal_of(runs: Sequence[ComparedRun]) -> float | None:
    """Return the `stop_return` of the runs if they agree, else the goal that Gymnasium's registry
    has for the environment."""
    goals = {goal for run in runs if (goal := run.config.get("stop_return")) is not None}
    if len(goals) == 1:
        return float(goals.pop())
    spec = gymnasium.registry.get(runs[0].environment)
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def parting(one: Band, other: Band) -> float | None:
    """Return the x from which on the intervals of two groups no longer overlap; None if they do at
    the end of what both have, or if a group has a single run and so no interval."""
    start, end = max(one.x[0], other.x[0]), min(one.x[-1], other.x[-1])
    if end <= start or min(one.runs, other.runs) == 1:
        return None
    grid = np.linspace(start, end, POINTS)
    low, high = (
        [np.interp(grid, band.x, getattr(band.estimate, side)) for band in (one, other)]
        for side in ("low", "high")
    )
    overlap = np.flatnonzero((high[0] >= low[1]) & (high[1] >= low[0]))
    first_apart = overlap[-1] + 1 if len(overlap) else 0
    return float(grid[first_apart]) if first_apart < POINTS else None
