"""The examples do what they say."""

from pathlib import Path

import pytest

import rookery

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def own_package(monkeypatch):
    """As in the folder of the package, or with it installed."""
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
def test_an_environment_of_ones_own_is_trained_by_name(own_package, backend, actors, tmp_path):
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
def test_parts_of_an_observation_are_seen(own_package, backend, tmp_path):
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
