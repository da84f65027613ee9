"""Agents that must learn: the presets, each over several seeds.

The quick ones run with every test; the others are marked `long` and run by hand:
python -m pytest tests/agents -m long
"""

from __future__ import annotations

import pytest

import rookery
from rookery.config import presets


def train(folder, algorithm, environment, seed, **settings):
    return rookery.train(algorithm, environment, runs_dir=folder, seed=seed, threads=1, **settings)


@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_solves_cartpole(seed, tmp_path):
    run = train(tmp_path, "ppo", "CartPole-v1", seed, stop_return=475)
    assert run.result["status"] == "solved"
    assert run.result["env_steps"] < 150_000
    assert run.evaluate(episodes=100)["return_mean"] >= 490


def test_vpg_improves_on_cartpole(tmp_path):
    run = train(tmp_path, "vpg", "CartPole-v1", 1, stop_return=195, env_steps=150_000)
    assert run.result["status"] == "solved"


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_ppo_solves_cartpole_for_five_seeds(seed, tmp_path):
    run = train(tmp_path, "ppo", "CartPole-v1", seed, stop_return=475)
    assert run.result["status"] == "solved"
    assert run.result["env_steps"] <= 200_000
    assert run.evaluate(episodes=100)["return_mean"] >= 490


@pytest.mark.long
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("algorithm", "environment", "goal"),
    [
        ("ppo", "LunarLander-v3", 200),
        ("ppo", "Pendulum-v1", -200),
        ("ppo", "Acrobot-v1", -90),
        ("ppo", "rookery/MaskedCartPole-v1", 475),
        ("ppo", "rookery/GroupedTetris-v0", 1_000),
        ("vpg", "CartPole-v1", 475),
        ("vpg", "Acrobot-v1", -100),
        ("dqn", "CartPole-v1", 475),
        ("dqn", "LunarLander-v3", 200),
        ("apex", "CartPole-v1", 475),
        ("apex", "LunarLander-v3", 200),
        ("r2d2", "rookery/MaskedCartPole-v1", 475),
        ("r2d2", "rookery/Recall-v1", 0.9),
    ],
)
def test_presets_reach_their_goals(algorithm, environment, goal, seed, tmp_path):
    assert environment in presets(algorithm)
    run = train(tmp_path, algorithm, environment, seed, stop_return=goal)
    assert run.result["status"] == "solved"
    assert run.result["env_steps"] <= 1_000_000


@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        (2, {}),
        (3, {}),
        pytest.param(2, {"backend": "ranks", "actors": 2, "envs": 16}, marks=pytest.mark.long),
    ],
)
def test_vpg_solves_the_synthetic_task_through_embeddings_and_memory(seed, backend, tmp_path):
    """To 95 % of the best return there is; the answer was shown a step before."""
    settings = {"preset": "learnable", "stop_return": 0.95 * 15, **backend}
    run = train(tmp_path, "vpg", "rookery/Synthetic-v1", seed, **settings)
    assert run.result["status"] == "solved"
    assert run.evaluate(episodes=100)["return_mean"] >= 0.95 * 15
