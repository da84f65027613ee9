"""A study: every point is run again and again, by turns, and set beside the ideal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.errors import RookeryError
from rookery.scaling.measure import Measured, combine
from rookery.scaling.points import Point, every_point
from rookery.scaling.predict import Coupling, Prediction, predict

Measure = Callable[[Point, int], Measured]
"""Runs a point in a round."""


@dataclass
class Tally:
    """What the runs of a point gave."""

    runs: list[Measured] = field(default_factory=list)
    failure: str | None = None
    """Why a run of it failed."""

    @property
    def measured(self) -> Measured | None:
        """All its runs as one."""
        return combine(self.runs) if self.runs else None


@dataclass
class Study:
    """What is run, on how many cores, and what came of it so far."""

    studies: dict[str, list[Point]]
    """The points of the weak and of the strong study, as far as they are asked for."""
    rounds: int
    cores: int
    coupling: Coupling
    tallies: dict[Point, Tally] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.tallies = {point: Tally() for point in every_point(self.studies)}

    def take_turns(self, measure: Measure, keep: Callable[[], None]) -> None:
        """All points, then all again: a machine that is slower for a while slows them all. A
        point that fails is not run again. `keep` is called after each run; Ctrl-C ends it."""
        try:
            for number in range(1, self.rounds + 1):
                for point, tally in self.tallies.items():
                    if tally.failure is not None:
                        continue
                    try:
                        tally.runs.append(measure(point, number))
                    except RookeryError as error:
                        tally.failure = str(error)
                    keep()
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def status(self) -> str:
        """How it ended."""
        failed = any(tally.failure is not None for tally in self.tallies.values())
        return "interrupted" if self.interrupted else "failed" if failed else "finished"

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """A row for each point of each study."""
        return {name: self.rows(name) for name in self.studies}

    def rows(self, study: str) -> list[dict[str, Any]]:
        """The points of a study beside its first one that has a speed."""
        points = self.studies[study]
        measured = {p: m for p in points if (m := self.tallies[p].measured) is not None}
        ahead = {
            larger: self.prediction(study, point, now)
            for point, now in measured.items()
            if (larger := point.doubled(study)) is not None
        }
        base = next(iter(measured.items()), None)
        return [self.row(study, point, measured.get(point), base, ahead) for point in points]

    def prediction(self, study: str, point: Point, now: Measured) -> Prediction:
        """Speed at twice the actors of a point."""
        return predict(now, point.actors, self.cores, self.coupling, study == "strong")

    def row(
        self,
        study: str,
        point: Point,
        now: Measured | None,
        base: tuple[Point, Measured] | None,
        ahead: Mapping[Point, Prediction],
    ) -> dict[str, Any]:
        """What is known of a point."""
        tally, larger = self.tallies[point], point.doubled(study)
        speeds = [run.speed for run in tally.runs]
        row: dict[str, Any] = {
            "label": point.label,
            "actors": point.actors,
            "envs": point.envs,
            "runs": len(speeds),
            "speeds": speeds,
            "predicted": ahead[point].speed if point in ahead else None,
            "failure": tally.failure,
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
