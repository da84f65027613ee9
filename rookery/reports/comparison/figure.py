"""A comparison as a figure for papers: learning curves with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.reports.comparison.groups import EnvironmentComparison
from rookery.reports.comparison.runs import Axis
from rookery.reports.figures import save_figure

AXIS_LABELS: dict[Axis, str] = {
    "steps": "environment steps",
    "seconds": "seconds",
    "updates": "updates",
    "frames": "frames",
}
LEGEND_LINE_INCHES = 0.24


def draw_comparison(
    found: Sequence[EnvironmentComparison], axes: Sequence[Axis], pictures: Sequence[Path]
) -> None:
    """Write one figure to each of some files: a row for each environment, a panel for each axis."""
    from matplotlib.figure import Figure

    # The legend stands below each row, so that it hides no point.
    legends = [LEGEND_LINE_INCHES * (len(each.groups) + 3) for each in found]
    size = (1 + 5.5 * len(axes), sum(3.9 + legend for legend in legends))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subfigures(len(found), 1, squeeze=False, height_ratios=[3.9 + x for x in legends])
    for row, each in zip(rows[:, 0], found, strict=True):
        panels = row.subplots(1, len(axes), squeeze=False, sharey=True)[0]
        for panel, axis in zip(panels, axes, strict=True):
            draw_panel(panel, each, axis)
        panels[0].set_ylabel(each.metric.replace("_", " "))
        row.suptitle(each.environment)
        row.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
    for picture in pictures:
        save_figure(figure, picture)


def draw_panel(panel: Any, found: EnvironmentComparison, axis: Axis) -> None:
    """Draw the runs as thin lines, each group's interquartile mean with its interval, and the
    baselines."""
    bands = found.bands(axis)
    for number, group in enumerate(found.groups):
        colour = f"C{number % 10}"
        for run in group.runs:
            curve = run.curve(found.metric, axis, found.smooth)
            panel.plot(curve.x, curve.y, color=colour, alpha=0.35, linewidth=0.8)
        if (band := bands.get(group.label)) is None:
            continue
        seeds = f" ({band.runs} seeds)" if band.runs > 1 else ""
        panel.plot(band.x, band.estimate.value, color=colour, label=f"{group.label}{seeds}")
        if band.runs > 1:
            panel.fill_between(
                *(band.x, band.estimate.low, band.estimate.high), color=colour, alpha=0.2, lw=0
            )
    for name, value, style in (
        ("goal", found.threshold, "--"),
        ("human", found.human, "-."),
        ("random policy", found.random, ":"),
    ):
        if value is not None:
            panel.axhline(value, color="0.4", linestyle=style, linewidth=1, label=name)
    panel.set_xlabel(AXIS_LABELS[axis])
    panel.grid(alpha=0.3)
    panel.margins(x=0.02)
    panel.set_xlim(left=0)
    panel.ticklabel_format(
        axis="x", style="plain" if axis == "seconds" else "sci", scilimits=(0, 5)
    )
