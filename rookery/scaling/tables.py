"""A study's results as text for the eye, and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rookery.runs.table import cell, to_text

Results = Mapping[str, Sequence[Mapping[str, Any]]]

LIMITS = {
    "nothing": "nothing in the way",
    "cores": "the cores are used up",
    "learner": "the learner is busy all the time",
    "sums": "sums over ranks take longer",
}


def tables(results: Results) -> str:
    """For each study: the speeds, where the time went, and what twice the actors would give."""
    return "\n\n".join(
        "\n\n".join([speed_table(name, rows), *split_table(rows), *twice_line(rows)])
        for name, rows in results.items()
    )


def speed_table(study: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Speeds, speed-up and efficiency; a point that failed tells why."""
    header = ["point", "actors", "envs each", "steps/s", "(min..max)"]
    header += ["speed-up", "ideal", "efficiency", "predicted"]
    lines = [
        [f"{row[name]}" for name in ("label", "actors", "envs")] + speed_cells(row) for row in rows
    ]
    return "\n".join([f"{study} scaling", *aligned([header, *lines]), *failures(rows)])


def speed_cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a point that come from its runs."""
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


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each point of which a run failed."""
    return [
        f"{row['label']} failed after {row['runs']} good runs: {row['failure']}"
        for row in rows
        if row["failure"]
    ]


def split_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Percent of the time by what it went to, and cores in use; nothing if nothing was run."""
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
    """The prediction for what is not measured: twice the actors of the last point."""
    twice = next((row["twice"] for row in reversed(rows) if "twice" in row), None)
    if twice is None or any(row["label"] == twice["label"] and row["runs"] for row in rows):
        return []
    speed, limit = twice["steps_per_second"], LIMITS[twice["limit"]]
    return [f"predicted at {twice['label']}: {speed:,.0f} steps/s ({limit})"]


def split_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What time went to, at any point."""
    return list({name: None for row in rows for name in row.get("percent", {})})


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def to_csv(results: Results) -> str:
    """A row for each point of each study."""
    lines = [csv_row(study, row) for study, rows in results.items() for row in rows]
    return to_text(list({name: None for line in lines for name in line}), lines)


def csv_row(study: str, row: Mapping[str, Any]) -> dict[str, str]:
    """A point's cells by column."""
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
    cells = {name: cell(value) for name, value in numbers.items()}
    return {"study": study, "label": row["label"], **cells, **texts}
