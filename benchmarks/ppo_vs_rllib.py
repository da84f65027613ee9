"""PPO's speed on two Ray actors beside RLlib's on two environment runners: by turns, as a ratio.

    pip install -e '.[bench]'
    python benchmarks/ppo_vs_rllib.py

CartPole-v1, 2 x 32 environments of 128 steps, 4 epochs x 4 minibatches, tanh 64-64, actor and
critic apart. Each side runs in a process of its own with its own Ray, the sides take turns, and
the median of the rounds' ratios is printed. Only iterations after the warm-up are timed.
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

from beside_sb3 import steady_speed

ACTORS, ENVS, ROLLOUT, EPOCHS, MINIBATCHES, LEARNING_RATE = 2, 32, 128, 4, 4, 3e-4
ITERATION = ACTORS * ENVS * ROLLOUT
WARM_UP, OURS, THEIRS = 3, 60, 12
"""Iterations."""


def rookery_side() -> float:
    """Environment steps per second of `rookery train --backend ray` after its warm-up."""
    settings = {
        "envs": ENVS,
        "actors": ACTORS,
        "env-steps": (WARM_UP + OURS) * ITERATION,
        "checkpoint-steps": 10**9,
        "algo.rollout_steps": ROLLOUT,
        "algo.epochs": EPOCHS,
        "algo.minibatches": MINIBATCHES,
        "algo.learning_rate": LEARNING_RATE,
        "net.hidden": "64,64",
        "net.activation": "tanh",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rookery", "train", "ppo", "CartPole-v1", "--no-preset"]
        command += ["--backend", "ray", "--runs-dir", folder, "--name", "bench", "--json"]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return steady_speed(Path(folder) / "bench", WARM_UP * ITERATION)


def rllib_side() -> float:
    """Return the result of `--rllib-only`, in a process of its own."""
    command = [sys.executable, __file__, "--rllib-only"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1])["steps_per_second"])


def run_rllib() -> float:
    """RLlib's environment steps per second."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    model = DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
    )
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=ACTORS,
            num_envs_per_env_runner=ENVS,
            rollout_fragment_length=ROLLOUT,
        )
        .training(
            train_batch_size=ITERATION,
            minibatch_size=ITERATION // MINIBATCHES,
            num_epochs=EPOCHS,
            lr=LEARNING_RATE,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            grad_clip=0.5,
        )
        .rl_module(model_config=model)
    )
    algorithm = config.build_algo()
    for _ in range(WARM_UP):
        algorithm.train()
    start = time.perf_counter()
    for _ in range(THEIRS):
        algorithm.train()
    speed = THEIRS * ITERATION / (time.perf_counter() - start)
    algorithm.stop()
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rllib-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rllib_only:
        print(json.dumps({"steps_per_second": run_rllib()}))
        return
    ratios = []
    for number in range(1, options.rounds + 1):
        ours, theirs = rookery_side(), rllib_side()
        ratios.append(ours / theirs)
        print(
            f"round {number}: {ours:,.0f} against {theirs:,.0f} steps/s, {ours / theirs:.2f} x",
            flush=True,
        )
    print(f"ray: median {statistics.median(ratios):.2f} x RLlib ({options.rounds} rounds)")


if __name__ == "__main__":
    main()
