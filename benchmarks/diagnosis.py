"""Measures what diagnosis, traps and histograms cost, in whole training runs that take turns.

python benchmarks/diagnosis.py                     # every kind of work, five rounds
python benchmarks/diagnosis.py "dqn CartPole" --rounds 9

Each round trains once with `--diagnose 0 --traps off`, once with the defaults and once with
histograms every 100 updates. Printed are the steps per second of each, divided by those of the
first, medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from statistics import median

WORK = {
    "ppo CartPole": ["ppo", "CartPole-v1", "--env-steps", "400_000", "--stop-return", "1000"],
    "dqn CartPole": ["dqn", "CartPole-v1", "--env-steps", "60_000", "--stop-return", "1000"],
    "ppo Pong": ["ppo", "PongNoFrameskip-v4", "--env-steps", "16_000"],
    "dqn Pong": ["dqn", "PongNoFrameskip-v4", "--env-steps", "8_000", "--algo.warm_up", "2_000"],
}
VARIANTS = {
    "off": ["--diagnose", "0", "--traps", "off"],
    "default": [],
    "histograms": ["--histograms", "100"],
}


def steps_per_second(words: list[str]) -> float:
    """Train once in a process of its own; return its speed."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--runs-dir", folder, "--no-random-baseline", "--json"]
        command = [sys.executable, "-m", "rookery", "train", *words, *own]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["env_steps_per_second"])


def main() -> None:
    """Measure and print a row for each kind of work."""
    parser = argparse.ArgumentParser(description="What diagnosis costs.")
    parser.add_argument("work", nargs="*", default=list(WORK), help=f"of {', '.join(WORK)}")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for work in options.work:
        ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(options.rounds):
            speeds = {
                name: steps_per_second([*WORK[work], *words]) for name, words in VARIANTS.items()
            }
            for name, speed in speeds.items():
                ratios[name].append(speed / speeds["off"])
        texts = [
            f"{name} {median(found):.3f} ({' '.join(f'{ratio:.2f}' for ratio in sorted(found))})"
            for name, found in ratios.items()
            if name != "off"
        ]
        print(f"{work}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
