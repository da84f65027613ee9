"""A comparison as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rookery.reports.comparison.groups import EnvironmentComparison
from rookery.reports.comparison.runs import setting_text
from rookery.runs.files import aligned


def comparison_text(found: EnvironmentComparison) -> str:
    """Return the table of an environment's groups, and below it what it is measured by, where
    groups part, and the settings in which they differ."""
    text = [found.environment, *aligned(table_cells(found))]
    text += ["", *comparison_notes(found)]
    differences = found.differences()
    if differences:
        names = [group.label for group in found.groups]
        short = names if len(names) <= 4 else [str(i + 1) for i in range(len(names))]
        rows = [["setting", *short]]
        rows += [[name, *map(setting_text, values)] for name, values in differences.items()]
        text += ["", *aligned(rows)]
    return "\n".join(text)


def table_cells(found: EnvironmentComparison) -> list[Sequence[str]]:
    """Return the table's rows as text, its header first."""
    goal = found.threshold
    header = ["group", "seeds", "score", "95 % interval", "better", "steps/s", "memory"]
    header += [] if goal is None else [f"steps to {goal:g}", f"seconds to {goal:g}"]
    lines: list[Sequence[str]] = [header]
    for row in found.rows():
        memory = row["peak_memory_mb"]
        cells = [
            row["group"],
            str(len(row["seeds"])),
            f"{row['score']:,.4g}",
            f"{row['low']:,.4g} to {row['high']:,.4g}" if len(row["seeds"]) > 1 else "",
            f"{row['better_than_first']:.0%}",
            f"{row['steps_per_second']:,.0f}",
            "" if memory is None else f"{memory:,.0f} MB",
        ]
        if goal is not None:
            cells += [reached_text(row[f"{axis}_to_threshold"]) for axis in ("steps", "seconds")]
        lines.append(cells)
    return lines


def comparison_notes(found: EnvironmentComparison) -> list[str]:
    """Return how the columns are measured, the baselines, and where groups part."""
    lines = [f"score: last {found.metric} of each run, interquartile mean over seeds"]
    if len(found.groups) > 1:
        lines.append("better: probability that a run scores above one of the first group")
    if found.threshold is not None:
        lines.append("to a goal: median over seeds (lowest to highest)")
    for name, score in (("random policy", found.random), ("human", found.human)):
        if score is not None:
            lines.append(f"{name}: {score:,.4g}")
    lines += [
        f"{pair.one} and {pair.other} are apart from step {pair.at:,.0f} on"
        for pair in found.partings("steps")
    ]
    return lines


def reached_text(found: Sequence[float | None]) -> str:
    """Return median and range over the seeds, or how many of them reached the goal."""
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return f"reached by {len(values)} of {len(found)}"
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    spec = ",.0f" if high >= 100 else ".1f"
    return f"{middle:{spec}}" if low == high else f"{middle:{spec}} ({low:{spec}} to {high:{spec}})"
