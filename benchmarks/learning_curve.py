"""Draws the returns of runs against steps and against seconds.

rookery train ppo CartPole-v1 --seed 1 --name cartpole-1        # and so on
python benchmarks/learning_curve.py curve.png runs/cartpole-*
"""

from __future__ import annotations

import sys
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

from rookery.runs.run import Run


def main(picture: str, folders: list[str]) -> None:
    """One line a run, one colour a pair of algorithm and environment."""
    figure, (by_steps, by_seconds) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    colours: dict[str, str] = defaultdict(lambda: f"C{len(colours)}")
    for folder in folders:
        run = Run.open(folder)
        label = f"{run.config['algorithm']} on {run.config['environment']}"
        fresh = label not in colours
        rows = [row for row in run.progress() if row.get("episode_return_mean") is not None]
        returns = [row["episode_return_mean"] for row in rows]
        style = {"color": colours[label], "alpha": 0.8, "label": label if fresh else None}
        by_steps.plot([row["env_steps"] for row in rows], returns, **style)
        by_seconds.plot([row["seconds"] for row in rows], returns, **style)
        tests = [row for row in rows if row.get("eval_return_mean") is not None]
        scores = [row["eval_return_mean"] for row in tests]
        style |= {
            "linestyle": "--",
            "marker": "o",
            "label": f"{label}, evaluated" if scores else None,
        }
        by_steps.plot([row["env_steps"] for row in tests], scores, **style)
        by_seconds.plot([row["seconds"] for row in tests], scores, **style)
    by_steps.set(xlabel="environment steps", ylabel="mean return of the last 100 episodes")
    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_seconds.set_xlabel("seconds")
    for axes in (by_steps, by_seconds):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
