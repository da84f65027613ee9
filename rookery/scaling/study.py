"""A scaling study: every point is run several times, in turns, and compared with the ideal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.errors import RookeryError
from rookery.scaling.measure import Measured, combine_runs
from rookery.scaling.points import Point, unique_points
from rookery.scaling.predict import Coupling, Prediction, predict

Measure = Callable[[Point, int], Measured]
"""Function that runs a point in a round of this number."""


@dataclass
class PointRuns:
    """The runs of one point, and why one failed."""

    runs: list[Measured] = field(default_factory=list)
    failure: str | None = None
    """Why a run failed; None if none did."""

    @property
    def measured(self) -> Measured | None:
        """The runs combined; None before the first."""
        return combine_runs(self.runs) if self.runs else None


@dataclass
class Study:
    """The points to run and their results so far."""

    studies: dict[str, list[Point]]
    """Points of the weak study, of the strong one, or of both, by name."""
    rounds: int
    cores: int
    coupling: Coupling
    point_runs: dict[Point, PointRuns] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.point_runs = {point: PointRuns() for point in unique_points(self.studies)}

    def run_rounds(self, measure: Measure, save: Callable[[], None]) -> None:
        """Run all points once per round, so that a slow phase of the machine affects all of them.

        A point that fails is not run again. `save` is called after each run. Ctrl-C ends it.
        """
        try:
            for number in range(1, self.rounds + 1):
                for point, runs_of_point in self.point_runs.items():
                    if runs_of_point.failure is not None:
                        continue
                    try:
                        runs_of_point.runs.append(measure(point, number))
                    except RookeryError as error:
                        runs_of_point.failure = str(error)
                    save()
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def status(self) -> str:
        """finished, failed if any run failed, or interrupted."""
        failed = any(
            runs_of_point.failure is not None for runs_of_point in self.point_runs.values()
        )
        return "interrupted" if self.interrupted else "failed" if failed else "finished"

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """Return a row per point of each study."""
        return {name: self.rows(name) for name in self.studies}

    def rows(self, study: str) -> list[dict[str, Any]]:
        """Return the rows of a study; speed-up is relative to the first point that was measured."""
        points = self.studies[study]
        measured = {p: m for p in points if (m := self.point_runs[p].measured) is not None}
        ahead = {
            larger: self.prediction(study, point, now)
            for point, now in measured.items()
            if (larger := point.doubled(study)) is not None
        }
        base = next(iter(measured.items()), None)
        return [self.row(study, point, measured.get(point), base, ahead) for point in points]

    def prediction(self, study: str, point: Point, now: Measured) -> Prediction:
        """Predict the speed at twice the actors of a point."""
        return predict(now, point.actors, self.cores, self.coupling, study == "strong")

    def row(
        self,
        study: str,
        point: Point,
        now: Measured | None,
        base: tuple[Point, Measured] | None,
        ahead: Mapping[Point, Prediction],
    ) -> dict[str, Any]:
        """Return the row of a point."""
        runs_of_point, larger = self.point_runs[point], point.doubled(study)
        speeds = [run.speed for run in runs_of_point.runs]
        row: dict[str, Any] = {
            "label": point.label,
            "actors": point.actors,
            "envs": point.envs,
            "runs": len(speeds),
            "speeds": speeds,
            "predicted": ahead[point].speed if point in ahead else None,
            "failure": runs_of_point.failure,
        }
        if now is None or base is None:
            return row
        speed_up, ideal = now.speed / base[1].speed, point.actors / base[0].actors
        row |= {
            "steps_per_second": now.speed,
            "min": min(speeds),
            "max": max(speeds),
            "speed_up": speed_up,
            "ideal": ideal,
            "efficiency": speed_up / ideal,
            "percent": {name: 100 * share for name, share in now.shares.items()},
            "cores_used": now.cores,
        }
        if larger is not None:
            twice = ahead[larger]
            row["twice"] = {
                "label": larger.label,
                "steps_per_second": twice.speed,
                "limit": twice.limit,
            }
        return row
