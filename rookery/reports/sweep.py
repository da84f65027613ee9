"""Scores of the trials of a sweep, against their number and the searched settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.reports.figures import label_in_full, save_figure
from rookery.runs.files import parse_number, read_cells, read_json

TRIAL_COLOURS = {"finished": "C0", "stopped": "0.6"}
SWEEP_COLUMNS = 3

TrialRows = Sequence[Mapping[str, str]]


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
