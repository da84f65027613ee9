"""Plot a scaling study from its scaling.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.runs.files import read_json, writing

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
        panel(axes, name, rows, study.get("reference"))
    cores = "1 core" if study["cores"] == 1 else f"{study['cores']} cores"
    environment = shortened(study["environment"])
    figure.suptitle(f"{study['algorithm']} on {environment}: {study['backend']}, {cores}")
    picture = folder / "scaling.png"
    with writing(picture):
        figure.savefig(picture, dpi=130)
    return picture


def shortened(environment: str) -> str:
    """Return the name of an environment; of several addresses, the first and their number."""
    first, *others = environment.split(",")
    return f"{first} and {len(others)} more" if others else first


def panel(axes: Any, study: str, rows: ScalingRows, reference: Mapping[str, Any] | None) -> None:
    """Plot measured, ideal and predicted speed against actors; with a reference, against
    environments, beside the reference's series."""
    at = [row["actors"] * (row["envs"] if reference else 1) for row in rows]
    draw_own(axes, at, rows)
    names = reference["labels"] if reference else {row["label"]: row["label"] for row in rows}
    for x, row in zip(at, rows, strict=True):
        axes.annotate(
            names[row["label"]],
            (x, row["steps_per_second"]),
            xytext=(7, -13),
            textcoords="offset points",
        )
    if reference:
        at += draw_reference(axes, reference["series"])
    scale(axes, sorted(set(at)))
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


def draw_own(axes: Any, at: Sequence[int], rows: ScalingRows) -> None:
    """Plot the measured, ideal and predicted speeds."""
    speeds = [row["steps_per_second"] for row in rows]
    below = [row["steps_per_second"] - row["min"] for row in rows]
    above = [row["max"] - row["steps_per_second"] for row in rows]
    ideal = sorted((x, speeds[0] * row["ideal"]) for x, row in zip(at, rows, strict=True))
    axes.plot(
        *zip(*ideal, strict=True), *("--",), color="0.55", label="ideal: proportional to actors"
    )
    axes.errorbar(
        at,
        speeds,
        yerr=[below, above],
        fmt="o-",
        color="C0",
        capsize=4,
        zorder=3,
        label="measured: median, min to max",
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
    for number, (name, points) in enumerate(series.items(), 2):
        at = [point["environments"] for point in points]
        speeds = [point["steps_per_second"] for point in points]
        axes.plot(at, speeds, "s-", color=f"C{number}", markersize=5, label=name)
        for point in points:
            axes.annotate(
                point["label"],
                (point["environments"], point["steps_per_second"]),
                xytext=(4, 6),
                textcoords="offset points",
                fontsize="small",
                color=f"C{number}",
            )
    return [point["environments"] for points in series.values() for point in points]


def scale(axes: Any, at: Sequence[int]) -> None:
    """Make both axes logarithmic, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(at)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
