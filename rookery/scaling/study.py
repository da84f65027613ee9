"""A scaling study: every point, a number of actors and of environments of each, is run several
times, in turns, and compared with the ideal."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rookery.errors import BadInput, RookeryError, require
from rookery.scaling.speed import Coupling, Measured, combine_runs, predict

Mode = Literal["weak", "strong", "both"]


class Point(NamedTuple):
    """A number of actors, and the number of environments of each."""

    actors: int
    envs: int

    @property
    def label(self) -> str:
        """ACTORS-ENVS, where ENVS is per actor."""
        return f"{self.actors}-{self.envs}"

    def doubled(self, study: str) -> Point | None:
        """Return the point with twice the actors; None if environments cannot be divided so far."""
        if study == "weak":
            return Point(2 * self.actors, self.envs)
        return None if self.envs % 2 else Point(2 * self.actors, self.envs // 2)


def parse_points(text: str) -> list[Point]:
    """Parse points such as "1-8,2-8,4-8"."""
    points = []
    for word in map(str.strip, text.split(",")):
        match = re.fullmatch(r"0*([1-9]\d*)-0*([1-9]\d*)", word)
        if match is None:
            raise BadInput(f'points: expected ACTORS-ENVS,... such as 1-8,2-8,4-8, got "{word}"')
        points.append(Point(int(match[1]), int(match[2])))
    twice = [point.label for at, point in enumerate(points) if point in points[:at]]
    require(not twice, f"points: {', '.join(twice)} is given twice in {text}; give each point once")
    return points


def plan_studies(points: list[Point], mode: Mode) -> dict[str, list[Point]]:
    """Return the points of each study. ENVS is per actor in a weak study; in a strong one it is the
    total, which is divided among the actors."""
    studies = {} if mode == "strong" else {"weak": points}
    if mode == "weak":
        return studies
    totals = sorted({point.envs for point in points})
    require(
        len(totals) == 1,
        f"points: a strong study needs the same number of environments at every point, got"
        f" {', '.join(map(str, totals))}",
    )
    for actors, total in points:
        require(
            total % actors == 0,
            f"points: {actors}-{total} cannot divide {total} environments evenly among {actors}"
            " actors; in a strong study the second number is the total over all actors",
        )
    return studies | {"strong": [Point(actors, total // actors) for actors, total in points]}


def unique_points(studies: dict[str, list[Point]]) -> list[Point]:
    """Return the points of all studies in order, each once."""
    return list(dict.fromkeys(point for points in studies.values() for point in points))


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

    def run_rounds(
        self, measure: Callable[[Point, int], Measured], save: Callable[[], None]
    ) -> None:
        """Run all points once per round, so that a slow phase of the machine affects all of them.

        `measure` runs a point in a round. A point that fails is not run again. `save` is called
        after each run. Ctrl-C ends it.
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
        failed = any(each.failure is not None for each in self.point_runs.values())
        return "interrupted" if self.interrupted else "failed" if failed else "finished"

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """Return a row per point of each study."""
        return {name: self.rows(name) for name in self.studies}

    def rows(self, study: str) -> list[dict[str, Any]]:
        """Return the rows of a study; speed-up is relative to the first point that was measured."""
        points = self.studies[study]
        measured = {p: m for p in points if (m := self.point_runs[p].measured) is not None}
        ahead = {
            larger: predict(now, point.actors, self.cores, self.coupling, study == "strong")
            for point, now in measured.items()
            if (larger := point.doubled(study)) is not None
        }
        rows = []
        for point in points:
            speeds = [run.speed for run in self.point_runs[point].runs]
            row: dict[str, Any] = {
                "label": point.label,
                "actors": point.actors,
                "envs": point.envs,
                "runs": len(speeds),
                "speeds": speeds,
                "predicted": ahead[point].speed if point in ahead else None,
                "failure": self.point_runs[point].failure,
            }
            rows.append(row)
            if point not in measured:
                continue
            (first, base), now = next(iter(measured.items())), measured[point]
            speed_up, ideal = now.speed / base.speed, point.actors / first.actors
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
            if (larger := point.doubled(study)) is not None:
                speed, limit = ahead[larger]
                row["twice"] = {"label": larger.label, "steps_per_second": speed, "limit": limit}
        return rows
