"""Runs that are compared: their reports as columns, and their settings."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rookery.envs import EnvOptions
from rookery.envs.factory import resolve_options
from rookery.errors import require
from rookery.fields import from_dict
from rookery.runs.files import Row
from rookery.runs.run import Run

Axis = Literal["steps", "seconds", "updates", "frames"]
AXIS_COLUMNS: dict[Axis, str] = {
    "steps": "env_steps",
    "seconds": "seconds",
    "updates": "updates",
    "frames": "env_steps",
}
EPISODES = 100
"""Episodes that the mean return of a report is over once there are as many."""
SEED = "seed"


class Curve(NamedTuple):
    """A metric against an axis."""

    x: np.ndarray
    y: np.ndarray


class ComparedRun:
    """A run with the columns of its reports."""

    def __init__(self, run: Run, rows: Sequence[Row]):
        self.run, self.config = run, run.config
        names = dict.fromkeys(name for row in rows for name in row)
        self.columns = {
            name: np.array(
                [math.nan if row.get(name) is None else row[name] for row in rows], dtype=float
            )
            for name in names
        }

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm"))

    @property
    def environment(self) -> str:
        return str(self.config.get("environment"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings but the seed, by their names on the command line."""
        return {name: value for name, value in flat(self.config) if name != SEED}

    def curve(self, metric: str, axis: Axis, smooth: int = 1) -> Curve:
        """Return a metric where it was reported, as a mean over the last `smooth` reports."""
        y = self.columns[metric]
        x = self.columns.get(AXIS_COLUMNS[axis], np.full(len(y), math.nan))
        known = np.isfinite(y) & np.isfinite(x)
        skip = frame_skip(self.config) if axis == "frames" else 1
        return Curve(x[known] * skip, trailing_mean(y[known], smooth))

    def known(self, column: str) -> np.ndarray:
        """Return the reported values of a column, empty if there are none."""
        values = self.columns.get(column, np.empty(0))
        return values[np.isfinite(values)]

    def last(self, column: str) -> float | None:
        """Return the last value of a column; None if it was never reported."""
        known = self.known(column)
        return float(known[-1]) if len(known) else None

    def largest(self, column: str) -> float | None:
        """Return the largest value of a column; None if it was never reported."""
        known = self.known(column)
        return float(known.max()) if len(known) else None

    @property
    def speed(self) -> float:
        """Environment steps per second over the whole run."""
        return (self.last("env_steps") or 0.0) / max(self.last("seconds") or 0.0, 1e-9)

    def reached(self, metric: str, axis: Axis, threshold: float) -> float | None:
        """Return where the metric first was at least the threshold; None if nowhere. A mean over
        the last episodes counts from the 100th on, as for `--stop-return`."""
        y, episodes = self.columns[metric], self.columns.get("episodes")
        reached = y >= threshold
        if metric.startswith("episode_") and episodes is not None:
            reached &= episodes >= EPISODES
        at = self.columns[AXIS_COLUMNS[axis]][reached]
        skip = frame_skip(self.config) if axis == "frames" else 1
        return float(at[0]) * skip if len(at) else None


def find_runs(paths: Sequence[str | Path]) -> list[ComparedRun]:
    """Return the runs with reports in the given folders and globs, or anywhere below these."""
    folders: dict[Path, None] = {}
    for path in paths:
        matches = [str(path)] if Path(path).exists() else sorted(glob.glob(str(path)))
        require(matches, f"compare: {path}: no such folder")
        for match in map(Path, matches):
            own = match / "config.json"
            files = [own] if own.is_file() else sorted(match.rglob("config.json"))
            folders |= dict.fromkeys(file.parent for file in files)
    opened = [Run.open(folder) for folder in folders if (folder / "progress.csv").is_file()]
    found = [ComparedRun(run, rows) for run in opened if (rows := run.progress())]
    require(found, f"compare: no runs with reports found in {' '.join(map(str, paths))}")
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a config with dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def setting_text(value: Any) -> str:
    """Return a setting as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def frame_skip(config: Mapping[str, Any]) -> int:
    """Return the number of frames of the environment in one step of the agent."""
    options = from_dict(EnvOptions, dict(config.get("env") or {}))
    return resolve_options(str(config["environment"]), options).frame_skip or 1


def trailing_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of each value and the `width - 1` before it, or as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
