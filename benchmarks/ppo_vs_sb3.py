"""PPO's speed beside Stable-Baselines3's at the same settings, and over ranks: by turns, as ratios.

    pip install -e '.[bench]'
    python benchmarks/ppo_vs_sb3.py cartpole            # serial against Stable-Baselines3
    python benchmarks/ppo_vs_sb3.py pong                # the same on Pong
    python benchmarks/ppo_vs_sb3.py ranks               # one rank of 64, two of 64, two of 32

Each side runs in a process of its own, the sides take turns, and the median of the rounds'
ratios is printed. Only whole iterations after a warm-up are timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from beside_sb3 import sb3_env, sb3_side, steady_speed

SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1", "envs": 64, "iterations": 48, "learning_rate": 3e-4},
    "pong": {"env": "PongNoFrameskip-v4", "envs": 8, "iterations": 4, "learning_rate": 2.5e-4},
}
ROLLOUT, EPOCHS, MINIBATCHES, WARM_UP = 128, 4, 4, 2


def rookery_side(work: str, ranks: int, envs: int, threads: int | None) -> float:
    """Environment steps per second of `rookery train` after its warm-up iterations."""
    setting = SETTINGS[work]
    iteration = envs * ranks * ROLLOUT
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rookery", "train", "ppo", setting["env"], "--no-preset"]
        command += ["--runs-dir", folder, "--name", "bench", "--json", "--envs", str(envs)]
        command += ["--actors", str(ranks)] if ranks > 1 else []
        command += ["--threads", str(threads)] if threads else []
        # A row of progress.csv is written at most every second; one checkpoint, at the end.
        total = setting["iterations"] * iteration
        command += ["--env-steps", str(total), "--checkpoint-steps", str(10 * total)]
        command += ["--algo.rollout_steps", str(ROLLOUT), "--algo.epochs", str(EPOCHS)]
        command += ["--algo.minibatches", str(MINIBATCHES)]
        command += ["--algo.learning_rate", str(setting["learning_rate"]), "--no-algo.anneal"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return steady_speed(Path(folder) / "bench", WARM_UP * iteration)


def run_sb3(work: str) -> float:
    """Train with Stable-Baselines3 in this process; steps per second after the warm-up."""
    from stable_baselines3 import PPO

    setting = SETTINGS[work]
    policy, env = sb3_env(setting["env"], setting["envs"])
    iteration = setting["envs"] * ROLLOUT
    model = PPO(
        policy,
        env,
        n_steps=ROLLOUT,
        batch_size=iteration // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=setting["learning_rate"],
        device="cpu",
    )
    model.learn(WARM_UP * iteration)
    iterations = max(2, setting["iterations"] // 2)
    start = time.perf_counter()
    model.learn(iterations * iteration)
    return iterations * iteration / (time.perf_counter() - start)


def against_sb3(work: str, rounds: int) -> None:
    """Rookery on `serial` and Stable-Baselines3 by turns."""
    ratios = []
    for number in range(1, rounds + 1):
        ours, theirs = rookery_side(work, 1, SETTINGS[work]["envs"], None), sb3_side(__file__, work)
        ratios.append(ours / theirs)
        print(f"round {number}: {ours:,.0f} against {theirs:,.0f} steps/s, {ours / theirs:.2f} x")
    print(f"{work}: median {statistics.median(ratios):.2f} x Stable-Baselines3 ({rounds} rounds)")


def over_ranks(rounds: int) -> None:
    """One rank of 64 environments on one thread, two of 64 (weak) and two of 32 (strong)."""
    weak, strong = [], []
    for number in range(1, rounds + 1):
        one, two, half = (
            rookery_side("cartpole", ranks, envs, 1) for ranks, envs in ((1, 64), (2, 64), (2, 32))
        )
        weak.append(two / one)
        strong.append(half / one)
        print(
            f"round {number}: 1 x 64 {one:,.0f}  2 x 64 {two:,.0f} ({two / one:.2f} x)"
            f"  2 x 32 {half:,.0f} ({half / one:.2f} x) steps/s"
        )
    print(
        f"ranks: weak scaling {statistics.median(weak):.2f} x,"
        f" strong scaling {statistics.median(strong):.2f} x (medians of {rounds} rounds)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("work", choices=["cartpole", "pong", "ranks"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sb3-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sb3_only:
        print(json.dumps({"steps_per_second": run_sb3(options.work)}))
    elif options.work == "ranks":
        over_ranks(options.rounds)
    else:
        against_sb3(options.work, options.rounds)


if __name__ == "__main__":
    main()
