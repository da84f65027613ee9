"""Results of a scaling study as tables and as CSV, beside published speeds of other systems."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.errors import BadInput, require
from rookery.runs.files import aligned, to_cell, to_text

REFERENCE_COLUMNS = ("series", "environments", "threads", "steps_per_second")
Results = Mapping[str, Sequence[Mapping[str, Any]]]

LIMITS = {
    "nothing": "no limit",
    "cores": "all cores are busy",
    "learner": "the learner is always busy",
    "sums": "all-reduce takes longer",
}
SCALING_COLUMNS = {
    "actors": "actors",
    "envs": "envs",
    "runs": "runs",
    "steps_per_second": "steps_per_second",
    "steps_per_second_min": "min",
    "steps_per_second_max": "max",
    "speed_up": "speed_up",
    "ideal_speed_up": "ideal",
    "efficiency": "efficiency",
    "predicted_steps_per_second": "predicted",
}
"""Names of numbers in a row, by the column of scaling.csv."""


def tables(results: Results) -> str:
    """Return for each study the speeds, where time went, and a prediction for twice the actors."""
    return "\n\n".join(
        "\n\n".join([speed_table(name, rows), *split_table(rows), *twice_line(rows)])
        for name, rows in results.items()
    )


def speed_table(study: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of speeds, speed-up and efficiency, with reasons of failures below."""
    header = ["point", "actors", "envs each", "steps/s", "(min..max)"]
    header += ["speed-up", "ideal", "efficiency", "predicted"]
    lines = [
        [f"{row[name]}" for name in ("label", "actors", "envs")] + speed_cells(row) for row in rows
    ]
    failures = [
        f"{row['label']} failed after {row['runs']} good runs: {row['failure']}"
        for row in rows
        if row["failure"]
    ]
    return "\n".join([f"{study} scaling", *aligned([header, *lines]), *failures])


def speed_cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a point that depend on its runs."""
    predicted = "-" if row["predicted"] is None else f"{row['predicted']:,.0f}"
    if "steps_per_second" not in row:
        return ["failed" if row["failure"] else "-", "", "", "", "", predicted]
    return [
        f"{row['steps_per_second']:,.0f}",
        f"({row['min']:,.0f}..{row['max']:,.0f})",
        f"{row['speed_up']:.2f}",
        f"{row['ideal']:.4g}",
        f"{100 * row['efficiency']:.0f} %",
        predicted,
    ]


def split_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of percent of time by kind of work and of cores in use; [] before any run."""
    measured = [row for row in rows if "percent" in row]
    names = list({name: None for row in measured for name in row["percent"]})
    lines = [["point", *names, "cores"]]
    for row in measured:
        percent = [f"{row['percent'].get(name, 0):.1f}" for name in names]
        lines.append([row["label"], *percent, f"{row['cores_used']:.2f}"])
    title = "percent of the time, of each actor and of the learner; cores in use"
    return ["\n".join([title, *aligned(lines)])] if measured else []


def twice_line(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the prediction for twice the actors of the last point, unless that was measured."""
    twice = next((row["twice"] for row in reversed(rows) if "twice" in row), None)
    if twice is None or any(row["label"] == twice["label"] and row["runs"] for row in rows):
        return []
    speed, limit = twice["steps_per_second"], LIMITS[twice["limit"]]
    return [f"predicted at {twice['label']}: {speed:,.0f} steps/s ({limit})"]


def scaling_csv(results: Results) -> str:
    """Return CSV with a row per point of each study."""
    lines = []
    for study, row in [(study, row) for study, rows in results.items() for row in rows]:
        twice = row.get("twice", {})
        numbers = {column: row.get(name) for column, name in SCALING_COLUMNS.items()}
        numbers["twice_steps_per_second"] = twice.get("steps_per_second")
        numbers["cores_used"] = row.get("cores_used")
        numbers |= {f"{name}_percent": value for name, value in row.get("percent", {}).items()}
        cells = {name: to_cell(value) for name, value in numbers.items()}
        texts = {"twice_limit": twice.get("limit", ""), "failure": row["failure"] or ""}
        lines.append({"study": study, "label": row["label"], **cells, **texts})
    return to_text(list({name: None for line in lines for name in line}), lines)


@dataclass(frozen=True)
class Reference:
    """Published speeds of another system by series, and the threads per actor in this study.

    Points are named ENVIRONMENTS-THREADS, both totals, and the study's own are renamed accordingly.
    """

    source: str
    series: dict[str, list[dict[str, Any]]]
    threads: int

    def own_label(self, row: Mapping[str, Any]) -> str:
        """Return a point of this study as ENVIRONMENTS-THREADS, both over all actors."""
        return f"{row['actors'] * row['envs']}-{row['actors'] * self.threads}"

    def to_dict(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
        lines = [["point", "here", *there]]
        for at in labels:
            speeds = [points.get(at) for points in there.values()]
            ratios = [f" ({here[at] / x:,.1f} x)" if x and at in here else "" for x in speeds]
            own = f"{here[at]:,.1f}" if at in here else "-"
            cells = ["-" if x is None else f"{x:,.1f}" for x in speeds]
            lines.append([at, own, *map("".join, zip(cells, ratios, strict=True))])
        title = f"steps/s beside {self.source} (times as fast here); points: environments-threads"
        return "\n".join([title, *aligned(lines)])


def read_reference(path: str, threads: int) -> Reference:
    """Read a CSV file of series, environments, threads and steps_per_second; `threads` is the
    number per actor in this study."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise BadInput(f"reference: {path} cannot be read: {error.strerror}") from None
    require(
        lines and set(REFERENCE_COLUMNS) <= set(lines[0]),
        f"reference: {path} must be CSV with the columns {', '.join(REFERENCE_COLUMNS)}",
    )
    series: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, 2):
        cells = [line[name] for name in REFERENCE_COLUMNS[1:]]
        try:
            point: dict[str, Any] = {"environments": int(cells[0]), "threads": int(cells[1])}
            point["steps_per_second"] = float(cells[2])
            fine = min(point.values()) > 0
        except (TypeError, ValueError):
            fine = False
        require(
            fine,
            f"reference: {path}, line {number}: environments, threads and steps_per_second must be"
            f" positive numbers, got {', '.join(map(str, cells))}",
        )
        label = f"{point['environments']}-{point['threads']}"
        series.setdefault(line["series"], []).append({"label": label, **point})
    return Reference(path, series, threads)
