"""Plot where a run's time went, from its progress.csv."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rookery.runs.files import Row, number, read_rows, writing

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


def bars(rows: Sequence[Row]) -> Bars:
    """Return where the time between the first and the last report went.

    On threads actors and learner work at the same time and have a bar each; elsewhere they
    alternate and share one. Time that was not measured is "other".
    """
    passed = number(rows[-1], "seconds") - number(rows[0], "seconds")
    spent = {name: sum(number(row, f"{name}_s") for row in rows[1:]) for name in (*ACTOR, *LEARNER)}
    if "actor_wait_s" in rows[-1]:
        waited = sum(number(row, "actor_wait_s") for row in rows[1:])
        actor = {name: spent[name] for name in ACTOR} | {"wait": waited}
        learner = {name: spent[name] for name in LEARNER}
        return {"an actor": with_other(actor, passed), "the learner": with_other(learner, passed)}
    return {"actor and learner\nin turn": with_other(spent, passed)}


def with_other(spent: dict[str, float], passed: float) -> dict[str, float]:
    """Add the rest of the time that passed as "other"."""
    return spent | {"other": max(0.0, passed - sum(spent.values()))}


def draw_split(run: Path, picture: Path) -> None:
    """Write the picture of a run's folder, unless it has fewer than two reports."""
    from matplotlib.figure import Figure

    rows = read_rows(run / "progress.csv")
    if len(rows) < 2:
        return
    whole = bars(rows)
    figure = Figure(figsize=(9, 1.9 + 0.9 * len(whole)), layout="constrained")
    axes = figure.subplots()
    for at, spent in enumerate(whole.values()):
        passed, left = sum(spent.values()), 0.0
        for name, seconds in spent.items():
            axes.barh(
                at, seconds, left=left, color=SPLIT_COLOURS[name], edgecolor="white", label=name
            )
            if seconds > 0.04 * passed:
                axes.text(
                    *(left + seconds / 2, at, f"{100 * seconds / passed:.0f} %"),
                    ha="center",
                    va="center",
                )
            left += seconds
    speed = number(rows[-1], "env_steps") / max(number(rows[-1], "seconds"), 1e-9)
    axes.set(
        title=f"{run.name}: where time goes ({speed:,.0f} environment steps/s)",
        xlabel="seconds between the first and the last report",
        yticks=range(len(whole)),
        yticklabels=list(whole),
        ylim=(-0.6, len(whole) - 0.4),
    )
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        [named[name] for name in SPLIT_COLOURS if name in named],
        [name for name in SPLIT_COLOURS if name in named],
        loc="outside lower center",
        ncols=len(SPLIT_COLOURS),
    )
    with writing(picture):
        figure.savefig(picture, dpi=130)
