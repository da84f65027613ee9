"""Draw the learning curves of runs from their progress.csv.

for seed in 1 2 3 4 5; do
    rookery train ppo CartPole-v1 --env-steps 150_000 --seed $seed --name cartpole-$seed
done
python benchmarks/learning_curve.py docs/learning_curve.png runs/cartpole-* --x steps \
    --goal 475 --random 21.3
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from rookery.runs.files import Row
from rookery.runs.run import Run

TRAINING, EVALUATION = "episode_return_mean", "eval_return_mean"
COLUMNS = {"steps": "env_steps", "seconds": "seconds"}
LABELS = {"steps": "environment steps", "seconds": "seconds of training"}


def main() -> None:
    """Draw one panel for each x axis, and one colour for each algorithm and environment."""
    options = parser().parse_args()
    groups = defaultdict(list)
    for folder in options.runs:
        run = Run.open(folder)
        groups[f"{run.config['algorithm']} on {run.config['environment']}"].append(run.progress())
    kinds = [options.x] if options.x else list(COLUMNS)
    size = (5.5 * len(kinds) + 1.5, 4)
    figure, panels = plt.subplots(1, len(kinds), figsize=size, sharey=True, squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        for number, (name, runs) in enumerate(groups.items()):
            draw_group(axes, COLUMNS[kind], name, runs, f"C{number}")
        if options.goal is not None:
            label = f"goal: {options.goal:g}"
            axes.axhline(options.goal, color="green", linestyle="--", label=label)
        if options.random is not None:
            label = f"random policy: {options.random:g}"
            axes.axhline(options.random, color="gray", linestyle=":", label=label)
        axes.set_xlabel(LABELS[kind])
        axes.grid(alpha=0.3)
        axes.legend(loc="center right")
    panels[0][0].set_ylabel("mean return of the last 100 episodes")
    if "steps" in kinds:
        panels[0][0].xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.tight_layout()
    figure.savefig(options.picture, dpi=120)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Draw the learning curves of runs.")
    made.add_argument("picture", help="PNG file to write")
    made.add_argument("runs", nargs="+", help="folders of runs")
    made.add_argument("--x", choices=list(COLUMNS), help="one panel with this x axis, not two")
    made.add_argument("--goal", type=float, help="return at which the task counts as solved")
    made.add_argument("--random", type=float, help="mean return of a random policy")
    return made


def draw_group(
    axes: Axes, column: str, name: str, runs: Sequence[Sequence[Row]], colour: str
) -> None:
    """Draw each run as a thin line, several also as their mean; evaluations as dots."""
    curves = [curve(rows, column, TRAINING) for rows in runs]
    several = len(curves) > 1
    for number, (x, y) in enumerate(curves):
        label = None if number or several else name
        axes.plot(x, y, color=colour, alpha=0.35 if several else 0.9, linewidth=1, label=label)
    if several:
        # The mean over runs is only defined as far as the shortest run goes.
        grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 200)
        mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
        label = f"{name}: mean of {len(curves)} seeds"
        axes.plot(grid, mean, color=colour, linewidth=2.5, label=label)
    for number, rows in enumerate(runs):
        x, y = curve(rows, column, EVALUATION)
        if len(x):
            label = None if number else f"{name}, evaluated"
            axes.plot(x, y, color=colour, linestyle="--", marker="o", label=label)


def curve(rows: Sequence[Row], column: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the x and y values of the reports that have the metric."""
    known = [row for row in rows if row.get(metric) is not None]
    return (
        np.array([row[column] for row in known], float),
        np.array([row[metric] for row in known], float),
    )


if __name__ == "__main__":
    main()
