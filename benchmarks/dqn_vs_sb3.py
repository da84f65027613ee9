"""DQN's speed beside Stable-Baselines3's at the same settings: by turns, as a ratio.

    pip install -e '.[bench]'
    python benchmarks/dqn_vs_sb3.py cartpole     # 8 environments, one batch of 64 per 4 steps
    python benchmarks/dqn_vs_sb3.py pong         # 8 environments, one batch of 32 per 4 steps

Both learn plain one-step DQN with a target network and Huber's loss, and both play `--every` steps
in each environment before the batches that are due for them. Each side runs in a process of its
own, the sides take turns, and the median of the rounds' ratios is printed. Only steps after the
warm-up, while both sides learn, are timed.
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
    "cartpole": {"env": "CartPole-v1", "batch": 64, "warm_up": 2_000, "steps": 40_000},
    "pong": {"env": "PongNoFrameskip-v4", "batch": 32, "warm_up": 1_000, "steps": 4_000},
}
ENVS, STEPS_PER_UPDATE, LEARNING_RATE, CAPACITY, TARGET_STEPS = 8, 4, 1e-4, 50_000, 10_000


def rookery_side(work: str, every: int) -> float:
    """Environment steps per second of `rookery train` after its warm-up."""
    setting = SETTINGS[work]
    values: dict[str, Any] = {
        "batch_size": setting["batch"],
        "samples_per_insert": setting["batch"] / STEPS_PER_UPDATE,
        "learning_rate": LEARNING_RATE,
        "capacity": CAPACITY,
        "warm_up": setting["warm_up"],
        "target_period": TARGET_STEPS // STEPS_PER_UPDATE,
        "rollout_steps": every,
        "n_step": 1,
        "alpha": 0,
        "double": False,
        "dueling": False,
        "max_grad_norm": 10,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rookery", "train", "dqn", setting["env"], "--no-preset"]
        command += ["--runs-dir", folder, "--name", "bench", "--json", "--envs", str(ENVS)]
        command += ["--env-steps", str(setting["steps"]), "--checkpoint-steps", str(10**9)]
        for name, value in values.items():
            command += [f"--algo.{name}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return steady_speed(Path(folder) / "bench", 1.5 * setting["warm_up"])


def run_sb3(work: str, every: int) -> float:
    """Train with Stable-Baselines3 in this process; steps per second after the warm-up."""
    from stable_baselines3 import DQN

    setting = SETTINGS[work]
    policy, env = sb3_env(setting["env"], ENVS)
    model = DQN(
        policy,
        env,
        batch_size=setting["batch"],
        buffer_size=CAPACITY,
        learning_starts=setting["warm_up"],
        learning_rate=LEARNING_RATE,
        train_freq=every,
        gradient_steps=every * ENVS // STEPS_PER_UPDATE,
        target_update_interval=TARGET_STEPS,
        device="cpu",
    )
    model.learn(int(1.5 * setting["warm_up"]))
    steps = setting["steps"] // 2
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Run the comparison that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("work", choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sb3-only", action="store_true")
    options = parser.parse_args()
    if options.sb3_only:
        print(json.dumps({"steps_per_second": run_sb3(options.work, options.every)}))
        return
    ratios = []
    for number in range(1, options.rounds + 1):
        ours = rookery_side(options.work, options.every)
        theirs = sb3_side(__file__, options.work, "--every", str(options.every))
        ratios.append(ours / theirs)
        print(f"round {number}: {ours:,.0f} against {theirs:,.0f} steps/s, {ours / theirs:.2f} x")
    median = statistics.median(ratios)
    print(f"{options.work}: median {median:.2f} x Stable-Baselines3 ({options.rounds} rounds)")


if __name__ == "__main__":
    main()
