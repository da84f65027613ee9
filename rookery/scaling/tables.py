"""Results of a scaling study as tables for the terminal and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rookery.runs.files import to_cell, to_text

Results = Mapping[str, Sequence[Mapping[str, Any]]]

LIMITS = {
    "nothing": "no limit",
    "cores": "all cores are busy",
    "learner": "the learner is always busy",
    "sums": "all-reduce takes longer",
}


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
    return "\n".join([f"{study} scaling", *aligned([header, *lines]), *failure_lines(rows)])


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


def failure_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per point that failed."""
    return [
        f"{row['label']} failed after {row['runs']} good runs: {row['failure']}"
        for row in rows
        if row["failure"]
    ]


def split_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of percent of time by kind of work and of cores in use; [] before any run."""
    names = split_names(rows)
    measured = [row for row in rows if "percent" in row]
    lines = [
        [
            row["label"],
            *(f"{row['percent'].get(name, 0):.1f}" for name in names),
            f"{row['cores_used']:.2f}",
        ]
        for row in measured
    ]
    header = ["point", *names, "cores"]
    title = "percent of the time, of each actor and of the learner; cores in use"
    return ["\n".join([title, *aligned([header, *lines])])] if lines else []


def twice_line(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the prediction for twice the actors of the last point, unless that was measured."""
    twice = next((row["twice"] for row in reversed(rows) if "twice" in row), None)
    if twice is None or any(row["label"] == twice["label"] and row["runs"] for row in rows):
        return []
    speed, limit = twice["steps_per_second"], LIMITS[twice["limit"]]
    return [f"predicted at {twice['label']}: {speed:,.0f} steps/s ({limit})"]


def split_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of work that took time at any point."""
    return list({name: None for row in rows for name in row.get("percent", {})})


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with padded columns: the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def scaling_csv(results: Results) -> str:
    """Return CSV with a row per point of each study."""
    lines = [scaling_csv_row(study, row) for study, rows in results.items() for row in rows]
    return to_text(list({name: None for line in lines for name in line}), lines)


def scaling_csv_row(study: str, row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a point by column."""
    twice = row.get("twice", {})
    numbers = {
        "actors": row["actors"],
        "envs": row["envs"],
        "runs": row["runs"],
        "steps_per_second": row.get("steps_per_second"),
        "steps_per_second_min": row.get("min"),
        "steps_per_second_max": row.get("max"),
        "speed_up": row.get("speed_up"),
        "ideal_speed_up": row.get("ideal"),
        "efficiency": row.get("efficiency"),
        "predicted_steps_per_second": row["predicted"],
        "twice_steps_per_second": twice.get("steps_per_second"),
        "cores_used": row.get("cores_used"),
        **{f"{name}_percent": value for name, value in row.get("percent", {}).items()},
    }
    texts = {"twice_limit": twice.get("limit", ""), "failure": row["failure"] or ""}
    cells = {name: to_cell(value) for name, value in numbers.items()}
    return {"study": study, "label": row["label"], **cells, **texts}
