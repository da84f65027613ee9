"""The reports of a run column by column, as rules read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from rookery.runs.run import Run

MOST_ROWS_KEPT = 1_000
"""Reports that are kept while a run goes on; older ones are then thinned out."""
CONFIDENT = 3.0
"""Standard errors between two means from which on they count as different (p < 0.003)."""


class Series(NamedTuple):
    """The reports that have a column, oldest first."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def late(self, share: float = 0.5) -> np.ndarray:
        """Return the newest values, `share` of all and at least one if there are any."""
        return self.values[-max(1, round(share * len(self.values))) :]


class Verdict(NamedTuple):
    """Mean return of the newest episodes against that of a random policy."""

    kind: str
    """"better", "worse" or "equal", or "unknown" without episodes or without a baseline."""
    mean: float | None
    random: float | None
    errors: float | None
    """Difference in standard errors; None if unknown."""

    @property
    def confidence(self) -> float | None:
        """Probability with which the difference is not chance (two-sided normal test)."""
        return None if self.errors is None else math.erf(abs(self.errors) / math.sqrt(2))


class History:
    """Reports, settings and result of a run."""

    def __init__(
        self,
        config: Mapping[str, Any],
        result: Mapping[str, Any] | None = None,
        baseline: Mapping[str, Any] | None = None,
    ):
        self.config = config
        self.result = result
        """Contents of result.json; None while the run goes on."""
        self.baseline = baseline
        """Mean, half width of its 95 % interval and episodes of the random policy."""
        self.columns: dict[str, tuple[list[float], list[float]]] = {}
        """Steps and values of each column."""

    @classmethod
    def of_run(cls, run: Run) -> Self:
        """Return the history in a run's folder."""
        result = run.result
        baseline = (result or {}).get("random_return")
        history = cls(run.config, result, baseline if isinstance(baseline, Mapping) else None)
        for row in run.progress():
            history.add(row)
        mean = history.last("random_return")
        if history.baseline is None and mean is not None:
            history.baseline = {"mean": mean, "half_width": 0.0}
        return history

    def add(self, report: Mapping[str, Any]) -> None:
        """Append a report."""
        step = report.get("env_steps")
        if not isinstance(step, int | float):
            return
        for name, value in report.items():
            if isinstance(value, int | float) and math.isfinite(value):
                steps, values = self.columns.setdefault(name, ([], []))
                steps.append(float(step))
                values.append(float(value))
        if self.result is None and self.rows > MOST_ROWS_KEPT:
            self.columns = {
                name: (steps[::2], values[::2]) for name, (steps, values) in self.columns.items()
            }

    @property
    def rows(self) -> int:
        """Number of reports."""
        return len(self.columns["env_steps"][0]) if self.columns else 0

    def series(self, name: str) -> Series:
        """Return a column; empty if no report has it."""
        steps, values = self.columns.get(name, ((), ()))
        return Series(np.array(steps), np.array(values))

    def by_layer(self, name: str) -> Iterator[tuple[str, Series]]:
        """Yield layer and series of the columns `name/LAYER`."""
        for column in self.columns:
            if column.startswith(f"{name}/"):
                yield column.partition("/")[2], self.series(column)

    def last(self, name: str) -> float | None:
        """Return the newest value of a column; None if there is none."""
        values = self.columns.get(name, ((), ()))[1]
        return values[-1] if values else None

    def setting(self, name: str) -> Any:
        """Return a setting by its dotted name; None if there is none."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def done(self) -> float:
        """Share of the run's steps that are made, 0 to 1; 1 if it has ended."""
        total = self.setting("env_steps")
        if self.result is not None or not isinstance(total, int | float) or total <= 0:
            return 1.0
        return min(1.0, (self.last("env_steps") or 0.0) / total)

    def verdict(self) -> Verdict:
        """Return whether the newest episodes are better than a random policy."""
        mean = self.last("episode_return_mean")
        if mean is None or self.baseline is None:
            return Verdict("unknown", mean, None, None)
        random = float(self.baseline["mean"])
        error = math.hypot(self.baseline["half_width"] / 1.96, self.return_error())
        if error == 0:
            errors = 0.0 if mean == random else math.copysign(math.inf, mean - random)
        else:
            errors = (mean - random) / error
        kind = "better" if errors > CONFIDENT else "worse" if errors < -CONFIDENT else "equal"
        return Verdict(kind, mean, random, errors)

    def return_error(self, at: int = -1) -> float:
        """Return the standard error of the mean return in report number `at`."""
        deviations, episodes = self.series("episode_return_std"), self.series("episodes")
        if not len(deviations):
            return 0.0
        window = min(100.0, float(episodes.values[at]) if len(episodes) else 100.0)
        return float(deviations.values[at]) / math.sqrt(max(1.0, window))

    @property
    def learned(self) -> bool:
        """True if the newest episodes are better than a random policy, or if that is unknown better
        than the first ones."""
        verdict = self.verdict()
        if verdict.kind != "unknown":
            return verdict.kind == "better"
        means = self.series("episode_return_mean").values
        if len(means) < 2:
            return False
        return bool(
            means[-1] - means[0] > CONFIDENT * math.hypot(self.return_error(), self.return_error(0))
        )


def first_step(series: Series, holds: Sequence[bool] | np.ndarray) -> int:
    """Return the step from which on a condition holds without interruption until the end."""
    flags = np.asarray(holds, dtype=bool)
    broken = np.flatnonzero(~flags)
    start = 0 if not len(broken) else int(broken[-1]) + 1
    return int(series.steps[min(start, len(series.steps) - 1)])
