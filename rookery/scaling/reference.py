"""Figures of another system's scaling study, to be set beside one's own.

They come as CSV: series, environments, threads, steps_per_second. A point is named as there,
environments in all and threads in all; one's own points, actors and environments of each, are
renamed to that.
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
    """Rows of other studies by the name of the series, and the threads of each actor here."""

    source: str
    series: dict[str, list[dict[str, Any]]]
    threads: int

    def renamed(self, row: Mapping[str, Any]) -> str:
        """A point of one's own as ENVIRONMENTS-THREADS, both over all actors."""
        return label(row["actors"] * row["envs"], row["actors"] * self.threads)

    def told(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """For scaling.json: the series, and the names of one's own points."""
        names = {row["label"]: self.renamed(row) for row in rows}
        return {"source": self.source, "series": self.series, "labels": names}

    def table(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Speeds here beside those of each series, and how many times as fast it is here."""
        here = {self.renamed(row): row["steps_per_second"] for row in rows if has_speed(row)}
        there = {
            name: {point["label"]: point["steps_per_second"] for point in points}
            for name, points in self.series.items()
        }
        labels = list(dict.fromkeys([*here, *(at for points in there.values() for at in points)]))
        lines = [
            [
                at,
                f"{here[at]:,.1f}" if at in here else "-",
                *(cell(points.get(at), here.get(at)) for points in there.values()),
            ]
            for at in labels
        ]
        title = f"steps/s beside {self.source} (times as fast here); points: environments-threads"
        return "\n".join([title, *aligned([["point", "here", *there], *lines])])


def label(environments: int, threads: int) -> str:
    """How a point is named."""
    return f"{environments}-{threads}"


def cell(there: float | None, here: float | None) -> str:
    """A figure of a series, with the ratio to it where there is one."""
    if there is None:
        return "-"
    return f"{there:,.1f}" if here is None else f"{there:,.1f} ({here / there:,.1f} x)"


def has_speed(row: Mapping[str, Any]) -> bool:
    """Whether a point was measured."""
    return "steps_per_second" in row


def read_reference(path: str, threads: int) -> Reference:
    """The series in a file; `threads` are those of each actor here."""
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
        series.setdefault(line["series"], []).append(point(path, number, line))
    return Reference(path, series, threads)


def point(path: str, number: int, line: Mapping[str, str]) -> dict[str, Any]:
    """A row of the file."""
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
        "label": label(environments, threads),
        "environments": environments,
        "threads": threads,
        "steps_per_second": speed,
    }
