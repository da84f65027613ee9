"""Published speeds of another system, to compare a scaling study with.

They are read from CSV with the columns series, environments, threads, steps_per_second. Points are
named ENVIRONMENTS-THREADS, both totals, and the study's own points are renamed accordingly.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.errors import BadInput, require
from rookery.scaling.tables import aligned

COLUMNS = ("series", "environments", "threads", "steps_per_second")


@dataclass(frozen=True)
class Reference:
    """Reference points by series, and the number of threads per actor in this study."""

    source: str
    series: dict[str, list[dict[str, Any]]]
    threads: int

    def own_label(self, row: Mapping[str, Any]) -> str:
        """Return a point of this study as ENVIRONMENTS-THREADS, both over all actors."""
        return point_label(row["actors"] * row["envs"], row["actors"] * self.threads)

    def to_dict(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the series and the names of this study's points, for scaling.json."""
        names = {row["label"]: self.own_label(row) for row in rows}
        return {"source": self.source, "series": self.series, "labels": names}

    def table(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Return a table of speeds here and in each series, with the ratio of the two."""
        here = {
            self.own_label(row): row["steps_per_second"]
            for row in rows
            if "steps_per_second" in row
        }
        there = {
            name: {point["label"]: point["steps_per_second"] for point in points}
            for name, points in self.series.items()
        }
        labels = list(dict.fromkeys([*here, *(at for points in there.values() for at in points)]))
        lines = [
            [
                at,
                f"{here[at]:,.1f}" if at in here else "-",
                *(speed_and_ratio(points.get(at), here.get(at)) for points in there.values()),
            ]
            for at in labels
        ]
        title = f"steps/s beside {self.source} (times as fast here); points: environments-threads"
        return "\n".join([title, *aligned([["point", "here", *there], *lines])])


def point_label(environments: int, threads: int) -> str:
    """Return the name of a point."""
    return f"{environments}-{threads}"


def speed_and_ratio(there: float | None, here: float | None) -> str:
    """Return a speed of a series, and how many times as fast this study is at the same point."""
    if there is None:
        return "-"
    return f"{there:,.1f}" if here is None else f"{there:,.1f} ({here / there:,.1f} x)"


def read_reference(path: str, threads: int) -> Reference:
    """Read the series of a CSV file; `threads` is the number per actor in this study."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise BadInput(f"reference: {path} cannot be read: {error.strerror}") from None
    require(
        lines and set(COLUMNS) <= set(lines[0]),
        f"reference: {path} must be CSV with the columns {', '.join(COLUMNS)}",
    )
    series: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, 2):
        series.setdefault(line["series"], []).append(parse_point_row(path, number, line))
    return Reference(path, series, threads)


def parse_point_row(path: str, number: int, line: Mapping[str, str]) -> dict[str, Any]:
    """Return a row of the file as a point; BadInput if its numbers are not positive."""
    try:
        environments, threads = int(line["environments"]), int(line["threads"])
        speed = float(line["steps_per_second"])
        fine = environments > 0 and threads > 0 and speed > 0
    except (TypeError, ValueError):
        fine = False
    require(
        fine,
        f"reference: {path}, line {number}: environments, threads and steps_per_second must be"
        f" positive numbers, got {', '.join(str(line[name]) for name in COLUMNS[1:])}",
    )
    return {
        "label": point_label(environments, threads),
        "environments": environments,
        "threads": threads,
        "steps_per_second": speed,
    }
