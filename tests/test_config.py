"""Settings: presets, overrides, files, and what is said of bad ones."""

from __future__ import annotations

import json

import pytest

from rookery.algorithms import ALGORITHMS
from rookery.config import default_config, from_values, presets, read_config, resolve, to_values
from rookery.errors import BadInput


def test_preset_of_the_environment_applies_and_overrides_win():
    known = presets("ppo")["CartPole-v1"]
    resolved = resolve("ppo", "CartPole-v1", {"envs": 5})
    assert resolved.preset == "CartPole-v1"
    assert resolved.config.envs == 5
    assert resolved.config.algo.rollout_steps == known["algo"]["rollout_steps"]
    assert resolve("ppo", "CartPole-v1", {}, use_preset=False).config == default_config(
        "ppo", "CartPole-v1"
    )


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_preset_is_valid(algorithm):
    for name in presets(algorithm):
        assert resolve(algorithm, "CartPole-v1", {}, preset=name).preset == name


def test_presets_apply_by_themselves_but_for_those_of_atari():
    assert resolve("dqn", "CartPole-v1", {}).preset == "CartPole-v1"
    assert resolve("dqn", "CartPole-v1", {}, use_preset=False).preset is None
    for environment in ("pong", "PongNoFrameskip-v4", "ALE/Pong-v5"):
        assert resolve("apex", environment, {}).preset is None
    assert resolve("apex", "pong", {}, preset="pong").config.actors == 60


def test_config_survives_json(tmp_path):
    config = resolve("ppo", "CartPole-v1", {"net": {"hidden": (32, 16)}, "stop_return": 475}).config
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_values(config)))
    assert from_values(read_config(file), {}) == config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"algo": {"learning_rat": 1}}, ["algo.learning_rat", "algo.learning_rate"]),
        ({"algo": {"gamma": 1.5}}, ["algo.gamma", "1.5"]),
        ({"algo": {"gamma": "high"}}, ["algo.gamma", "high", "number"]),
        ({"env_steps": 0}, ["env_steps", "0"]),
        ({"envs": -1}, ["envs", "-1"]),
        ({"net": {"activation": "step"}}, ["net.activation", "step", "tanh"]),
        ({"net": {"hidden": (0,)}}, ["net.hidden", "0"]),
        ({"learner": {"micro_batches": 0}}, ["learner.micro_batches", "0"]),
        ({"env": {"sticky": 2.0}}, ["env.sticky", "2.0"]),
        ({"backend": "serial", "actors": 2}, ["serial", "actors=2", "--backend"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"precision": "fp8"}, ["precision", "fp8", "bf16"]),
    ],
)
def test_bad_settings_are_named(overrides, words):
    with pytest.raises(BadInput) as error:
        resolve("ppo", "CartPole-v1", overrides)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_unknown_names_offer_the_nearest():
    with pytest.raises(BadInput, match='"ppo"'):
        resolve("poo", "CartPole-v1", {})
    with pytest.raises(BadInput, match="CartPole-v1"):
        resolve("ppo", "MyEnv-v0", {}, preset="Cartpole-v1")


def test_unreadable_config_files(tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        read_config(tmp_path / "nowhere.json")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2")
    with pytest.raises(BadInput, match=r"broken\.yaml"):
        read_config(broken)
