"""The picture of a scaling study, from its scaling.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.runs.files import read_json, writing

Rows = Sequence[Mapping[str, Any]]


def draw(folder: Path) -> Path | None:
    """Write scaling.png beside the scaling.json in `folder`; None if no point has a speed."""
    from matplotlib.figure import Figure

    told = read_json(folder / "scaling.json")
    studies = {
        name: measured
        for name, rows in told["studies"].items()
        if (measured := [row for row in rows if "steps_per_second" in row])
    }
    if not studies:
        return None
    figure = Figure(figsize=(1 + 6 * len(studies), 4.8), layout="constrained")
    panels = figure.subplots(1, len(studies), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, studies.items(), strict=True):
        panel(axes, name, rows)
    cores = "1 core" if told["cores"] == 1 else f"{told['cores']} cores"
    figure.suptitle(f"{told['algorithm']} on {told['environment']}: {told['backend']}, {cores}")
    picture = folder / "scaling.png"
    with writing(picture):
        figure.savefig(picture, dpi=130)
    return picture


def panel(axes: Any, study: str, rows: Rows) -> None:
    """Speed against actors, measured, ideal and predicted."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    actors = [row["actors"] for row in rows]
    speeds = [row["steps_per_second"] for row in rows]
    ideal = [rows[0]["steps_per_second"] * row["ideal"] for row in rows]
    below = [row["steps_per_second"] - row["min"] for row in rows]
    above = [row["max"] - row["steps_per_second"] for row in rows]
    order = sorted(range(len(rows)), key=lambda at: actors[at])
    axes.plot(
        *([values[at] for at in order] for values in (actors, ideal)),
        *("--",),
        color="0.55",
        label="ideal: proportional to actors",
    )
    axes.errorbar(
        actors,
        speeds,
        yerr=[below, above],
        fmt="o-",
        color="C0",
        capsize=4,
        zorder=3,
        label="measured: median, min to max",
    )
    expected = [row for row in rows if row["predicted"] is not None]
    axes.plot(
        [row["actors"] for row in expected],
        [row["predicted"] for row in expected],
        *("D",),
        color="C1",
        markerfacecolor="none",
        markersize=8,
        label="predicted from half the actors",
    )
    for row in rows:
        axes.annotate(
            row["label"],
            (row["actors"], row["steps_per_second"]),
            xytext=(7, -13),
            textcoords="offset points",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(set(actors)))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    each = "environments of each actor fixed" if study == "weak" else "environments in all fixed"
    axes.set(
        title=f"{study} scaling, {each}",
        xlabel="actors (points: actors-environments each)",
        ylabel="environment steps per second",
    )
    axes.grid(alpha=0.3)
    axes.margins(0.12)
    axes.legend(loc="upper left")
