"""Environments of one's own reach the actors of a cluster."""

import io
from pathlib import Path

import rookery
from rookery.envs import registry

PACKAGE = Path(__file__).parents[3] / "examples" / "custom_env"
SETTINGS = {"backend": "ray", "actors": 2, "env_steps": 3_000, "algo": {"rollout_steps": 32}}


def test_a_package_is_found_where_the_driver_finds_it(joined_cluster, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(PACKAGE))
    run = rookery.train(
        "ppo", "twostate:TwoState-v0", runs_dir=tmp_path, console=io.StringIO(), **SETTINGS
    )
    assert run.result["env_steps"] >= 3_000
    assert run.result["episodes"] > 1_000


def test_what_is_registered_in_the_drivers_process_only_is_sent(
    joined_cluster, monkeypatch, tmp_path
):
    monkeypatch.setattr(registry, "_registered", {})

    def make():
        import gymnasium

        return gymnasium.make("CartPole-v1")

    rookery.register_env("cart", make)
    run = rookery.train("ppo", "cart", runs_dir=tmp_path, console=io.StringIO(), **SETTINGS)
    assert run.result["env_steps"] >= 3_000
