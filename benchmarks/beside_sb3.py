"""Common parts of the comparisons with Stable-Baselines3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rookery.runs.run import Run


def steady_speed(run: Path, warm_up: float) -> float:
    """Steps per second between the first report after the warm-up and the last report."""
    rows = Run.open(run).progress()
    rows = [row for row in rows if float(row["env_steps"] or 0) >= 0.9 * warm_up]
    first, last = rows[0], rows[-1]
    steps = float(last["env_steps"] or 0) - float(first["env_steps"] or 0)
    return steps / (float(last["seconds"] or 0) - float(first["seconds"] or 0))


def sb3_side(script: str, work: str, *options: str) -> float:
    """Return the result of `script WORK --sb3-only`, in a process of its own."""
    command = [sys.executable, script, work, "--sb3-only", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1])["steps_per_second"])


def sb3_env(name: str, count: int) -> tuple[str, Any]:
    """The policy's name and the environments that Stable-Baselines3 takes for Atari or others."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    if "NoFrameskip" not in name:
        return "MlpPolicy", make_vec_env(name, count)
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return "CnnPolicy", VecFrameStack(make_atari_env(name, count), 4)
