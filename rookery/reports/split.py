"""Where the time of a run went, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rookery.reports.figures import save_figure
from rookery.runs.files import Row, number, read_rows

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

Bars = dict[str, dict[str, float]]
"""Seconds by kind of work, for each bar."""


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
