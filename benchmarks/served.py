"""Speed of served environments compared with the same ones in this process.

    python benchmarks/served.py overhead   16 x 84x84x4 bytes a step, nothing else
    python benchmarks/served.py atari      16 x ALE/Pong-v5 in stacks of 4, random actions
    python benchmarks/served.py lunar      PPO on 8 x LunarLander-v3, the whole training loop

The first two alternate between both sides and print medians.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rookery
from rookery.envs import EnvOptions, make_env

HERE = Path(__file__).parent
LUNAR: dict[str, Any] = {
    "envs": 8,
    "algo": {"rollout_steps": 40, "epochs": 3, "minibatches": 20},
    "net": {"hidden": [64]},
    "threads": 1,
}


class Blank(gymnasium.Env):
    """Four constant grayscale frames."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        self.frames = np.zeros((4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.frames, {}

    def step(self, action: Any) -> Any:
        return self.frames, 0.0, False, False, {}


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Run `rookery serve` with these arguments on a free port; yields its address."""
    command = [sys.executable, "-m", "rookery", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE)
    try:
        assert process.stdout is not None
        found = re.search(r"tcp://\S+:\d+", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def step_times(env: Any, steps: int) -> list[float]:
    """Return the seconds of each of `steps` steps with random actions."""
    draw = np.random.default_rng(0)
    actions = draw.integers(env.single_action_space.n, size=(steps, env.num_envs))
    times = []
    for action in actions:
        start = time.perf_counter()
        env.step(action)
        times.append(time.perf_counter() - start)
    return times


def by_turns(name: str, rounds: int, steps: int, stack: int = 1) -> tuple[list[float], list[float]]:
    """Return the seconds of each step in this process and on a server, alternating.

    Stacks are made in this process on both sides, so that each frame is sent once.
    """
    sys.path.insert(0, str(HERE))
    options = EnvOptions(frame_stack=stack)
    with server(name, "--envs", "16", "--env.frame_stack", "1") as address:
        envs = [make_env(where, options, num_envs=16) for where in (name, address)]
        assert envs[0].observation_space == envs[1].observation_space
        times: list[list[float]] = [[], []]
        for env in envs:
            env.reset(seed=0)
        for turn in range(rounds + 1):
            for env, own in zip(envs, times, strict=True):
                taken = step_times(env, steps)
                own += taken if turn else []
        for env in envs:
            env.close()
    return times[0], times[1]


def overhead(rounds: int) -> None:
    """Print how much longer a step takes on a server."""
    here, there = by_turns("served:Blank", rounds, steps=200)
    medians = [1000 * statistics.median(times) for times in (here, there)]
    print(f"in process {medians[0]:.3f} ms, served {medians[1]:.3f} ms a step")
    print(f"overhead: {medians[1] - medians[0]:.3f} ms")


def atari(rounds: int) -> None:
    """Print steps per second of 16 Atari games."""
    steps = 40
    here, there = by_turns("ALE/Pong-v5", rounds, steps, stack=4)
    speeds = [
        [16 * steps / sum(times[i : i + steps]) for i in range(0, len(times), steps)]
        for times in (here, there)
    ]
    ratio = statistics.median(b / a for a, b in zip(*speeds, strict=True))
    medians = [statistics.median(own) for own in speeds]
    print(f"in process {medians[0]:,.0f}, served {medians[1]:,.0f} steps/s, ratio {ratio:.3f}")


def lunar(rounds: int) -> None:
    """Print steps per second of whole training runs."""
    speeds = []
    with server("LunarLander-v3", "--envs", "8") as address, tempfile.TemporaryDirectory() as runs:
        for seed in range(rounds):
            run = rookery.train("ppo", address, runs_dir=runs, env_steps=40_000, seed=seed, **LUNAR)
            assert run.result is not None
            speeds.append(run.result["env_steps_per_second"])
    values = ", ".join(f"{speed:,.0f}" for speed in speeds)
    print(f"steps/s: {values}; median {statistics.median(speeds):,.0f}")


def main() -> None:
    """Run one comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("overhead", "atari", "lunar"))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    {"overhead": overhead, "atari": atari, "lunar": lunar}[options.what](options.rounds)


if __name__ == "__main__":
    main()
