"""examples/cpp_agent builds, and plays the same episodes as Python."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from served import serving

import rookery
import rookery.training.trained
from rookery.cli.main import main

SOURCE = Path(__file__).parent.parent / "examples" / "cpp_agent"
EPISODES, LANES = 20, 3
MEMORY = {"core_size": 16, "hidden": [16]}


def missing_tool() -> str | None:
    """Return which tool or header for the build is missing, if any."""
    for program in ("cmake", "make", "g++"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    for header in ("zmq.hpp", "nlohmann/json.hpp"):
        found = subprocess.run(
            ["g++", "-E", "-x", "c++", "-", "-o", os.devnull],
            input=f"#include <{header}>",
            text=True,
            capture_output=True,
        )
        if found.returncode:
            return f"the header {header} is not installed (Debian: cppzmq-dev, nlohmann-json3-dev)"
    return None


MISSING = missing_tool()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Start the build in the background, while the test exports; calling it waits for the build."""
    build = tmp_path_factory.mktemp("build")
    commands = [
        [
            *("cmake", "-S", str(SOURCE), "-B", str(build)),
            f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        ],
        ["cmake", "--build", str(build)],
    ]
    joined = " && ".join(" ".join(f"'{word}'" for word in command) for command in commands)
    with open(build / "log.txt", "w") as log:
        process = subprocess.Popen(["sh", "-c", joined], stdout=log, stderr=subprocess.STDOUT)

    def built() -> str:
        assert process.wait() == 0, (build / "log.txt").read_text()
        return str(build / "cpp_agent")

    yield built
    process.kill()
    process.wait()


def play(program, run, environment):
    """Run the agent on a served environment; return its output, and its actions by environment and
    episode."""
    out = run.path / "export"
    actions = run.path / "actions.csv"
    with serving(environment, "--envs", str(LANES)) as server:
        done = subprocess.run(
            [
                *(program(), str(out), server.address, "--episodes", str(EPISODES)),
                *("--envs", str(LANES), "--seed", "4", "--actions", str(actions)),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")
    taken: dict[tuple[int, int], list[int]] = {}
    with open(actions) as file:
        for row in csv.DictReader(file):
            steps = taken.setdefault((int(row["lane"]), int(row["episode"])), [])
            assert int(row["step"]) == len(steps)
            steps.append(int(row["action"]))
    return done.stdout.splitlines(), taken


def in_python(run, environment, lane, episodes):
    """Yield actions and return of each episode of one environment, played in Python."""
    env = gymnasium.make(environment)
    policy = Stacked(run)
    obs, _ = env.reset(seed=4 + lane)
    for _ in range(episodes):
        actions, total, over = [], 0.0, False
        policy.reset()
        while not over:
            actions.append(int(policy(obs)))
            obs, reward, terminated, truncated, _ = env.step(actions[-1])
            total += float(reward)
            over = terminated or truncated
        yield actions, total
        obs, _ = env.reset()


class Stacked:
    """The policy of a run, with normalization and frame stacking done here in NumPy."""

    def __init__(self, run):
        self.policy = run.policy
        layer, self.frames = run.make_env(1), run.settings.env.frame_stack or 1
        layer.close()
        self.normalized = layer.env.normalized if self.frames > 1 else lambda obs: obs

    def reset(self):
        self.state, self.stack = self.policy.begin(1), None

    def __call__(self, obs):
        row = self.normalized(np.asarray(obs)[None])
        if self.frames > 1:
            old = np.zeros((1, self.frames, 4), np.float32) if self.stack is None else self.stack
            row = self.stack = np.concatenate([old[:, 1:], row[:, None]], 1)
        action, self.state = self.policy.decide(row, np.zeros(1), self.state)
        return action[0]


def check_same_episodes(program, run):
    lines, taken = play(program, run, "CartPole-v1")
    shares = [EPISODES // LANES + (lane < EPISODES % LANES) for lane in range(LANES)]
    wanted = {
        (lane, episode): outcome
        for lane in range(LANES)
        for episode, outcome in enumerate(in_python(run, "CartPole-v1", lane, shares[lane]))
    }
    assert taken == {place: actions for place, (actions, _) in wanted.items()}
    returns = sorted(total for _, total in wanted.values())
    assert len(set(returns)) > 3
    found = [float(line.split("return ")[1].split(",")[0]) for line in lines[:-1]]
    assert sorted(found) == returns
    mean = sum(returns) / EPISODES
    assert lines[-1] == f"mean return {mean:g} of {EPISODES} episodes"


@pytest.fixture(autouse=True)
def shaken(monkeypatch):
    """Add large noise to the weights, so that actions depend on the recurrent state."""
    load = rookery.training.trained.load_weights

    def load_and_shake(algorithm, tensors):
        load(algorithm, tensors)
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in algorithm.network.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=random))

    monkeypatch.setattr(rookery.training.trained, "load_weights", load_and_shake)


def trained(tmp_path, **settings):
    return rookery.train(
        *("ppo", "CartPole-v1"),
        runs_dir=tmp_path,
        env_steps=500,
        envs=4,
        threads=1,
        use_preset=False,
        algo={"rollout_steps": 64, "learning_rate": 3e-3},
        **settings,
    )


def test_cpp_agent_plays_the_same_episodes_as_python(program, tmp_path):
    """With a GRU, so that actions depend on state that is carried on and reset."""
    run = trained(tmp_path, net=MEMORY | {"core": "gru", "shared": True})
    assert main(["export", str(run.path), "--format", "libtorch"]) == 0
    check_same_episodes(program, run)
    refuses_another_environment(program(), run)


def refuses_another_environment(agent, run):
    with serving("Acrobot-v1") as server:
        command = [agent, str(run.path / "export"), server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(
        'cpp_agent: the environment\'s obs is ["<f4",[6]], the policy\'s ["<f4",[4]]: serve it'
    )


@pytest.mark.long
def test_cpp_agent_with_normalization_frame_stack_and_lstm_plays_as_python(program, tmp_path):
    stacked = {"normalize_obs": True, "frame_stack": 2}
    run = trained(tmp_path, net=MEMORY | {"core": "lstm"}, env=stacked)
    assert main(["export", str(run.path), "--format", "libtorch"]) == 0
    check_same_episodes(program, run)
