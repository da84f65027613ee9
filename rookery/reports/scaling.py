"""Speed against the number of actors, from the results of a scaling study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.reports.figures import label_in_full, save_figure
from rookery.runs.files import read_json

ScalingRows = Sequence[Mapping[str, Any]]


def draw_scaling(folder: Path) -> Path | None:
    """Write scaling.png beside the scaling.json in `folder`; None if no point has a speed."""
    from matplotlib.figure import Figure

    study = read_json(folder / "scaling.json")
    studies = {
        name: measured
        for name, rows in study["studies"].items()
        if (measured := [row for row in rows if "steps_per_second" in row])
    }
    if not studies:
        return None
    figure = Figure(figsize=(1 + 6 * len(studies), 4.8), layout="constrained")
    panels = figure.subplots(1, len(studies), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, studies.items(), strict=True):
        draw_study(axes, name, rows, study.get("reference"))
    cores = "1 core" if study["cores"] == 1 else f"{study['cores']} cores"
    first, *others = study["environment"].split(",")  # several addresses of served ones
    environment = f"{first} and {len(others)} more" if others else first
    figure.suptitle(f"{study['algorithm']} on {environment}: {study['backend']}, {cores}")
    return save_figure(figure, folder / "scaling.png")


def draw_study(
    axes: Any, study: str, rows: ScalingRows, reference: Mapping[str, Any] | None
) -> None:
    """Plot measured, ideal and predicted speed against actors; with a reference, against
    environments, beside the reference's series."""
    at = [row["actors"] * (row["envs"] if reference else 1) for row in rows]
    draw_speeds(axes, at, rows)
    names = reference["labels"] if reference else {row["label"]: row["label"] for row in rows}
    for x, row in zip(at, rows, strict=True):
        where = (x, row["steps_per_second"])
        axes.annotate(names[row["label"]], where, xytext=(7, -13), textcoords="offset points")
    if reference:
        at += draw_reference(axes, reference["series"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(set(at)))
    label_in_full(axes.xaxis, (), ",.0f")
    label_in_full(axes.yaxis, (1, 2, 3, 5, 7), ",.0f")
    each = "environments of each actor fixed" if study == "weak" else "environments in all fixed"
    own = "actors (points: actors-environments each)"
    axes.set(
        title=f"{study} scaling, {each}",
        xlabel="environments (points: environments-threads)" if reference else own,
        ylabel="environment steps per second",
    )
    axes.grid(alpha=0.3)
    axes.margins(0.12)
    axes.legend(loc="best" if reference else "upper left")


def draw_speeds(axes: Any, at: Sequence[int], rows: ScalingRows) -> None:
    speeds = [row["steps_per_second"] for row in rows]
    below = [row["steps_per_second"] - row["min"] for row in rows]
    above = [row["max"] - row["steps_per_second"] for row in rows]
    ideal = sorted((x, speeds[0] * row["ideal"]) for x, row in zip(at, rows, strict=True))
    label = "ideal: proportional to actors"
    axes.plot(*zip(*ideal, strict=True), *("--",), color="0.55", label=label)
    label = "measured: median, min to max"
    axes.errorbar(
        at, speeds, yerr=[below, above], fmt="o-", color="C0", capsize=4, zorder=3, label=label
    )
    expected = [(x, row) for x, row in zip(at, rows, strict=True) if row["predicted"] is not None]
    axes.plot(
        [x for x, _ in expected],
        [row["predicted"] for _, row in expected],
        *("D",),
        color="C1",
        markerfacecolor="none",
        markersize=8,
        label="predicted from half the actors",
    )


def draw_reference(axes: Any, series: Mapping[str, ScalingRows]) -> list[int]:
    """Plot the series of a reference and return the positions of their points."""
    for count, (name, points) in enumerate(series.items(), 2):
        colour = f"C{count}"
        where = [(point["environments"], point["steps_per_second"]) for point in points]
        axes.plot(*zip(*where, strict=True), *("s-",), color=colour, markersize=5, label=name)
        style = {"textcoords": "offset points", "fontsize": "small", "color": colour}
        for point, place in zip(points, where, strict=True):
            axes.annotate(point["label"], place, xytext=(4, 6), **style)
    return [point["environments"] for points in series.values() for point in points]
