"""RunConfig: presets, overrides, files, and errors for bad settings."""

from __future__ import annotations

import json

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
import yaml

import rookery.envs
from rookery.algorithms import ALGORITHMS, algorithm_class
from rookery.algorithms.base import Spaces
from rookery.config import (
    default_config,
    from_values,
    preset_base,
    presets,
    read_config,
    resolve,
    to_values,
)
from rookery.errors import BadInput
from rookery.fields import from_dict
from rookery.memory import budget


def test_preset_of_the_environment_applies_and_overrides_win():
    known = presets("ppo")["CartPole-v1"]
    resolved = resolve("ppo", "CartPole-v1", {"envs": 5})
    assert resolved.presets == ("CartPole-v1",)
    assert resolved.config.envs == 5
    assert resolved.config.algo.rollout_steps == known["algo"]["rollout_steps"]
    assert resolve("ppo", "CartPole-v1", {}, use_preset=False).config == default_config(
        "ppo", "CartPole-v1"
    )


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("environment", ["CartPole-v1", "ALE/Pong-v5"])
def test_every_preset_is_valid(algorithm, environment):
    for name in presets(algorithm):
        assert resolve(algorithm, environment, {}, preset=name).presets[-1] == name


def test_presets_apply_by_default_except_those_of_one_atari_game():
    assert resolve("dqn", "CartPole-v1", {}).presets == ("CartPole-v1",)
    assert resolve("dqn", "CartPole-v1", {}, use_preset=False).presets == ()
    assert resolve("dqn", "MountainCar-v0", {}).presets == ()
    assert "ALE/Tetris-v5" in presets("ppo")
    assert resolve("ppo", "ALE/Tetris-v5", {}).presets == ("Atari",)
    asked = resolve("ppo", "ALE/Tetris-v5", {}, preset="ALE/Tetris-v5")
    assert asked.presets == ("Atari", "ALE/Tetris-v5")
    assert asked.config.envs == 16


# ---------------------------------------------------------------- Atari


def settings_of(config, names):
    """Return settings by their dotted names."""
    values = to_values(config)
    found = {}
    for name in names:
        group, _, field = name.rpartition(".")
        found[name] = values[group][field] if group else values[name]
    return found


PAPERS = {
    "ppo": {
        "envs": 8,
        "algo.rollout_steps": 128,
        "algo.epochs": 4,
        "algo.minibatches": 4,
        "algo.clip": 0.1,
        "algo.entropy_coef": 0.01,
        "algo.learning_rate": 2.5e-4,
        "algo.anneal": True,
        "algo.gamma": 0.99,
        "algo.lam": 0.95,
    },
    "vpg": {
        "envs": 8,
        "algo.episodes": None,
        "algo.rollout_steps": 128,
        "algo.minibatches": 4,
        "algo.entropy_coef": 0.01,
        "algo.learning_rate": 2.5e-4,
    },
    "dqn": {
        "env.one_life": True,
        "algo.optimizer": "adam",
        "algo.learning_rate": 6.25e-5,
        "algo.epsilon": 1.5e-4,
        "algo.gamma": 0.99,
        "algo.n_step": 1,
        "algo.batch_size": 32,
        "algo.samples_per_insert": 8,  # one batch of 32 for every 4 steps
        "algo.capacity": 1_000_000,
        "algo.warm_up": 50_000,
        "algo.target_period": 10_000 // 4,
        "algo.epsilon_start": 1.0,
        "algo.epsilon_end": 0.01,
        "algo.epsilon_steps": 1_000_000 // 4,
    },
    "apex": {
        "env.one_life": True,
        "algo.optimizer": "rmsprop",
        "algo.learning_rate": 0.00025 / 4,
        "algo.gamma": 0.99,
        "algo.n_step": 3,
        "algo.batch_size": 512,
        "algo.warm_up": 50_000,
        "algo.alpha": 0.6,
        "algo.beta": 0.4,
        "algo.max_grad_norm": 40,
        "algo.target_period": 2_500,
        "algo.epsilon_base": 0.4,
        "algo.epsilon_power": 7,
        "algo.double": True,
        "algo.dueling": True,
    },
    "r2d2": {
        "env.one_life": False,
        "env.clip_reward": False,
        "net.core": "lstm",
        "net.core_size": 512,
        "algo.optimizer": "adam",
        "algo.learning_rate": 1e-4,
        "algo.epsilon": 1e-3,
        "algo.gamma": 0.997,
        "algo.n_step": 5,
        "algo.burn_in": 40,
        "algo.unroll": 80,
        "algo.stride": 40,
        "algo.batch_size": 64,
        "algo.alpha": 0.9,
        "algo.beta": 0.6,
        "algo.eta": 0.9,
        "algo.rescale": True,
        "algo.inputs": True,
        "algo.target_period": 2_500,
    },
}
ATARI_NAMES = ["ALE/Pong-v5", "PongNoFrameskip-v4", "pong", "envpool:Pong-v5", "ale_py:ALE/Pong-v5"]


@pytest.mark.parametrize("environment", ATARI_NAMES)
@pytest.mark.parametrize("algorithm", sorted(PAPERS))
def test_atari_games_get_the_settings_of_the_papers(algorithm, environment):
    resolved = resolve(algorithm, environment, {})
    assert resolved.presets == ("Atari",)
    assert settings_of(resolved.config, PAPERS[algorithm]) == PAPERS[algorithm]
    assert resolved.config == preset_base(algorithm, environment)
    plain = resolve(algorithm, environment, {}, use_preset=False)
    assert plain.presets == ()
    assert plain.config == default_config(algorithm, environment) != resolved.config


@pytest.mark.parametrize("algorithm", sorted(PAPERS))
@pytest.mark.parametrize("environment", ["MountainCar-v0", "tcp://host:5555", "mine:Pong-v5"])
def test_other_environments_get_no_atari_preset_unless_named(algorithm, environment):
    assert resolve(algorithm, environment, {}).config == default_config(algorithm, environment)
    assert preset_base(algorithm, environment) == default_config(algorithm, environment)
    asked = resolve(algorithm, environment, {}, preset="Atari")
    assert asked.presets == ("Atari",)
    assert settings_of(asked.config, PAPERS[algorithm]) == PAPERS[algorithm]


def test_a_registered_environment_with_a_games_name_gets_no_atari_preset(monkeypatch):
    monkeypatch.setattr(rookery.envs.registry, "_registered", {})
    assert resolve("ppo", "Pong", {}).presets == ("Atari",)
    rookery.register_env("Pong", lambda: None)
    assert resolve("ppo", "Pong", {}).presets == ()


def test_presets_override_the_atari_preset_and_overrides_win():
    overrides = {"algo": {"beta": 0.5}, "env": {"clip_reward": True}}
    resolved = resolve("r2d2", "ALE/Pong-v5", overrides, preset="CartPole-v1")
    assert resolved.presets == ("Atari", "CartPole-v1")
    algo = resolved.config.algo
    assert (algo.beta, algo.unroll, algo.target_period) == (0.5, 32, 2_500)
    assert resolve("r2d2", "ALE/Pong-v5", {}).config.env.clip_reward is False
    assert resolved.config.env.clip_reward is True
    alone = resolve("ppo", "ALE/Pong-v5", {}, preset="CartPole-v1", use_preset=False)
    assert alone.presets == ("CartPole-v1",)
    assert alone.config.algo.clip == 0.2
    assert resolve("ppo", "ALE/Pong-v5", {}, preset="CartPole-v1").config.algo.clip == 0.1


def test_a_preset_from_a_file_overrides_the_atari_preset(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"ALE/Pong-v5": {"algo": {"epochs": 2}}}))
    resolved = resolve("ppo", "ALE/Pong-v5", {}, preset=str(file))
    assert resolved.presets == ("Atari", str(file))
    assert (resolved.config.algo.epochs, resolved.config.algo.clip) == (2, 0.1)


@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        ("ppo", ["ALE/Tetris-v5", "tetris-nature", "tetris-reference"]),
        ("dqn", ["rainbow"]),
        ("apex", ["small"]),
        ("r2d2", ["small"]),
    ],
)
def test_named_atari_presets_do_not_depend_on_the_atari_preset(algorithm, names):
    """They set everything that the Atari preset changes."""
    for environment in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        for name in names:
            laid = resolve(algorithm, environment, {}, preset=name).config
            assert laid == resolve(algorithm, environment, {}, preset=name, use_preset=False).config


RELA_GAMES = ["asterix", "asteroids", "gravitar", "ms_pacman", "qbert", "seaquest", "breakout"]
RELA = {
    "actors": 60,
    "envs": 40,
    "eval_episodes": 10,
    "learner.prefetch": 1,
    "env.one_life": True,
    "algo.gamma": 0.997,
    "algo.n_step": 3,
    "algo.max_grad_norm": 40,
    "algo.target_period": 2_500,
    "algo.epsilon_base": 0.4,
    "algo.epsilon_power": 7,
    "algo.double": True,
    "algo.dueling": True,
    "algo.samples_per_insert": None,
}
RELA_APEX = RELA | {
    "learner.publish_updates": 20,
    "algo.optimizer": "rmsprop",
    "algo.learning_rate": 6.25e-5,
    "algo.epsilon": 1.5e-4,
    "algo.batch_size": 512,
    "algo.capacity": 2_000_000,
    "algo.warm_up": 80_000,
    "algo.alpha": 0.6,
    "algo.beta": 0.4,
}
RELA_R2D2 = RELA | {
    "learner.publish_updates": 10,
    "algo.optimizer": "adam",
    "algo.learning_rate": 1e-4,
    "algo.epsilon": 1e-3,
    "algo.batch_size": 64,
    "algo.warm_up": 4_000 * 80,
    "algo.alpha": 0.9,
    "algo.beta": 0.6,
    "algo.burn_in": 40,
    "algo.unroll": 80,
    "algo.stride": 80,
    "algo.eta": 0.9,
    "net.core": "lstm",
    "net.core_size": 512,
}


@pytest.mark.parametrize("game", [*RELA_GAMES, "pong"])
@pytest.mark.parametrize(("algorithm", "figures"), [("apex", RELA_APEX), ("r2d2", RELA_R2D2)])
@pytest.mark.parametrize("use_preset", [True, False])
def test_relas_presets_are_relas_settings(algorithm, figures, game, use_preset):
    if game == "pong":  # Pong has no lives
        figures = figures | {"env.one_life": False}
    config = resolve(algorithm, "ALE/Pong-v5", {}, f"rela-{game}", use_preset).config
    assert settings_of(config, figures) == figures
    assert rookery.envs.factory.resolve_options("ALE/Pong-v5", config.env).clip_reward is True
    # Each of the 2,400 environments stores 20 or 21 complete sequences.
    if algorithm == "r2d2":
        assert config.algo.capacity // 80 == pytest.approx(50_000, rel=0.01)


@pytest.mark.parametrize("algorithm", ["dqn", "apex", "r2d2"])
def test_the_replay_of_the_atari_preset_fits_into_12_gb(algorithm, monkeypatch):
    """The size is read from the call of check_replay_fits."""

    class Checked(Exception):
        pass

    def check(needed, rows, ranks=1):
        raise Checked(needed)

    monkeypatch.setattr(budget, "check_replay_fits", check)
    config = resolve(algorithm, "ALE/Pong-v5", {}).config
    stack = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    seen = Spaces(stack, spaces.Discrete(6), frame_stack=4)
    agent = algorithm_class(algorithm)(seen, config.algo, config.net, torch.device("cpu"))
    with pytest.raises(Checked) as needed:
        agent.memory(config.envs, 2, 0)
    assert 5e9 < needed.value.args[0] < 12e9


def test_a_config_file_gets_no_atari_preset():
    values = {"algorithm": "ppo", "environment": "ALE/Pong-v5", "algo": {"epochs": 2}}
    config = from_values(values, {})
    assert config == from_dict(
        type(config), {"algo": {"epochs": 2}}, default_config("ppo", "ALE/Pong-v5")
    )
    for algorithm in PAPERS:  # presets of a run were resolved at its start
        config = resolve(algorithm, "ALE/Pong-v5", {}, use_preset=False).config
        assert from_values(to_values(config), {}) == config


# ---------------------------------------------------------------- files and errors


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
def test_bad_settings_are_errors_that_name_them(overrides, words):
    with pytest.raises(BadInput) as error:
        resolve("ppo", "CartPole-v1", overrides)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_unknown_names_are_errors_with_the_nearest_name():
    with pytest.raises(BadInput, match='"ppo"'):
        resolve("poo", "CartPole-v1", {})
    with pytest.raises(BadInput, match="CartPole-v1"):
        resolve("ppo", "MyEnv-v0", {}, preset="Cartpole-v1")


def test_unreadable_config_files_are_errors(tmp_path):
    with pytest.raises(BadInput, match="nowhere"):
        read_config(tmp_path / "nowhere.json")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2")
    with pytest.raises(BadInput, match=r"broken\.yaml"):
        read_config(broken)
