"""Pictures drawn from the files of runs, scaling studies and sweeps."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.errors import missing_extra
from rookery.runs.files import Row, number, parse_number, read_cells, read_json, read_rows, writing

LEARNER = ("learn", "reduce", "wait")
ACTOR = ("env", "inference", "transfer")
SPLIT_COLOURS = {
    "env": "#4c9f70",
    "inference": "#3b7dd8",
    "transfer": "#9ec1f0",
    "learn": "#e07b39",
    "reduce": "#b24c63",
    "wait": "#c9c9c9",
    "other": "#efefef",
}
TRIAL_COLOURS = {"finished": "C0", "stopped": "0.6"}
SWEEP_COLUMNS = 3

Bars = dict[str, dict[str, float]]
"""Seconds by kind of work, for each bar."""
ScalingRows = Sequence[Mapping[str, Any]]
TrialRows = Sequence[Mapping[str, str]]


def require_matplotlib(what: str) -> None:
    """Raise BadInput if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra(what, "plots")


def save_figure(figure: Any, picture: Path) -> Path:
    """Write a figure to the file `picture` and return that."""
    with writing(picture):
        figure.savefig(picture, dpi=130)
    return picture


def label_in_full(axis: Any, subs: Sequence[int], spec: str) -> None:
    """Label a logarithmic axis with plain numbers, at the multiples `subs` of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if subs:
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value, spec)))
    axis.set_minor_formatter(NullFormatter())


def time_bars(rows: Sequence[Row]) -> Bars:
    """Return where the time between the first and the last report went.

    On threads actors and learner work at the same time and have a bar each; elsewhere they
    alternate and share one. Time that was not measured is "other".
    """
    passed = number(rows[-1], "seconds") - number(rows[0], "seconds")
    spent = {name: sum(number(row, f"{name}_s") for row in rows[1:]) for name in (*ACTOR, *LEARNER)}
    bars = {"actor and learner\nin turn": spent}
    if "actor_wait_s" in rows[-1]:
        waited = sum(number(row, "actor_wait_s") for row in rows[1:])
        actor = {name: spent[name] for name in ACTOR} | {"wait": waited}
        bars = {"an actor": actor, "the learner": {name: spent[name] for name in LEARNER}}
    return {
        label: bar | {"other": max(0.0, passed - sum(bar.values()))} for label, bar in bars.items()
    }


def draw_split(run: Path, picture: Path) -> None:
    """Draw where a run's time went, from its progress.csv, unless that has fewer than two rows."""
    from matplotlib.figure import Figure

    rows = read_rows(run / "progress.csv")
    if len(rows) < 2:
        return
    bars = time_bars(rows)
    figure = Figure(figsize=(9, 1.9 + 0.9 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for at, spent in enumerate(bars.values()):
        passed, left = sum(spent.values()), 0.0
        for name, seconds in spent.items():
            colour = SPLIT_COLOURS[name]
            axes.barh(at, seconds, left=left, color=colour, edgecolor="white", label=name)
            if seconds > 0.04 * passed:
                percent = f"{100 * seconds / passed:.0f} %"
                axes.text(left + seconds / 2, at, percent, ha="center", va="center")
            left += seconds
    speed = number(rows[-1], "env_steps") / max(number(rows[-1], "seconds"), 1e-9)
    axes.set(
        title=f"{run.name}: where time goes ({speed:,.0f} environment steps/s)",
        xlabel="seconds between the first and the last report",
        yticks=range(len(bars)),
        yticklabels=list(bars),
        ylim=(-0.6, len(bars) - 0.4),
    )
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        [named[name] for name in SPLIT_COLOURS if name in named],
        [name for name in SPLIT_COLOURS if name in named],
        loc="outside lower center",
        ncols=len(SPLIT_COLOURS),
    )
    save_figure(figure, picture)


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


def draw_sweep(folder: Path) -> Path | None:
    """Write sweep.png beside the results in `folder`; None if no trial has a score."""
    from matplotlib.figure import Figure

    spec = read_json(folder / "sweep.json")
    rows = [row for row in read_cells(folder / "results.csv")[1] if row["status"] in TRIAL_COLOURS]
    rows = [row for row in rows if parse_number(row["score"]) is not None]
    if not rows:
        return None
    count = 1 + len(spec["space"])
    across = 2 if count == 4 else min(count, SWEEP_COLUMNS)
    down = math.ceil(count / across)
    figure = Figure(figsize=(1 + 4.2 * across, 0.6 + 3.6 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    draw_progress(panels[0], rows, spec)
    for axes, (name, written) in zip(panels[1:], spec["space"].items(), strict=False):
        draw_setting(axes, rows, name, written)
    for axes in panels[:count]:
        axes.grid(alpha=0.3)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count:across]:
        axes.set_ylabel(f"{spec['metric']}, mean of seeds")
    figure.suptitle(
        f"{spec['algorithm']} on {spec['environment']}: {len(rows)} trials, {spec['search']} search"
    )
    return save_figure(figure, folder / "sweep.png")


def draw_progress(axes: Any, rows: TrialRows, spec: Mapping[str, Any]) -> None:
    """Plot score against trial number, and the best score so far of finished trials."""
    better = max if spec["mode"] == "max" else min
    for status, label in (("finished", "ran to its end"), ("stopped", "stopped early")):
        these = [row for row in rows if row["status"] == status]
        if these:
            draw_trials(axes, [float(row["trial"]) for row in these], these, label)
    whole = [row for row in rows if row["status"] == "finished"]
    best = list(itertools.accumulate((float(row["score"]) for row in whole), better))
    numbers = [float(row["trial"]) for row in whole]
    axes.step(numbers, best, color="C1", where="post", label="best so far", zorder=1)
    axes.set_xlabel("trial")
    axes.legend(fontsize="small")


def draw_setting(axes: Any, rows: TrialRows, name: str, written: Mapping[str, Any]) -> None:
    """Plot score against a searched setting, on the scale of its search space."""
    (kind,) = written
    if kind == "choice":
        seen = {row[name]: None for row in rows}
        labels = sorted(
            seen, key=lambda text: (parse_number(text) is None, parse_number(text) or 0, text)
        )
        places = [float(labels.index(row[name])) for row in rows]
        axes.set_xticks(range(len(labels)), labels)
        axes.margins(x=0.2)
    else:
        places = [float(row[name]) for row in rows]
        if kind.startswith("log"):
            axes.set_xscale("log")
            label_in_full(axes.xaxis, (1, 2, 5) if kind == "logint" else (1,), "g")
    for status in TRIAL_COLOURS:
        these = [at for at, row in enumerate(rows) if row["status"] == status]
        draw_trials(axes, [places[at] for at in these], [rows[at] for at in these])
    axes.set_xlabel(name)


def draw_trials(axes: Any, places: list[float], rows: TrialRows, label: str | None = None) -> None:
    """Plot a dot per trial, with a line from the lowest to the highest score of its seeds."""
    for place, row in zip(places, rows, strict=True):
        seeds = [float(row[key]) for key in row if key.startswith("score_seed_") and row[key]]
        if len(seeds) > 1:
            colour = TRIAL_COLOURS[row["status"]]
            axes.plot([place] * 2, [min(seeds), max(seeds)], color=colour, lw=1, alpha=0.5)
    scores = [float(row["score"]) for row in rows]
    colours = [TRIAL_COLOURS[row["status"]] for row in rows]
    axes.scatter(places, scores, c=colours, s=28, zorder=3, label=label)
