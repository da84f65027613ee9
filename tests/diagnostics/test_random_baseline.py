"""The random policy's return: measured without bias, cached, and part of every run's files."""

from __future__ import annotations

import io
import itertools
import json
import random
from types import SimpleNamespace

import gymnasium
import numpy as np
import planted_envs as planted
import pytest
import torch
from gymnasium import spaces

import rookery
from rookery.cli.main import main
from rookery.diagnostics import random_baseline
from rookery.diagnostics.random_baseline import Baseline, baseline_of, cached, measure_baseline
from rookery.envs import EnvOptions, register_env
from rookery.envs import registry as names

TINY = {"env_steps": 256, "envs": 2, "algo": {"rollout_steps": 32}, "console": io.StringIO()}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Names and cached returns end with the test."""
    monkeypatch.setattr(names, "_registered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class LongOrShort(gymnasium.Env):
    """Episodes of 1 step with return 0, or of 99 steps with return 1, each as likely."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 99]))
        self.reward = float(self.left == 99)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        done = self.left == 0
        return np.zeros(1, np.float32), self.reward * done, done, False, {}


@pytest.fixture
def row_clock(monkeypatch):
    """A clock that advances by a second whenever it is read, once for every row."""
    clock = itertools.count()
    monkeypatch.setattr(random_baseline, "time", SimpleNamespace(monotonic=lambda: next(clock)))


def test_interval_by_hand():
    # Returns 1, 2, 3: s = 1, so 1.96 / sqrt(3).
    found = baseline_of(2.0, float(np.std([1, 2, 3])), 3)
    assert (found.mean, found.episodes) == (2.0, 3)
    assert found.half_width == pytest.approx(1.96 / 3**0.5)


@pytest.mark.parametrize(
    ("baseline", "text"),
    [
        (Baseline(22.345, 1.12, 100), "22.3 ± 1.1"),
        (Baseline(0.0142, 0.0196, 100), "0.014 ± 0.020"),
        (Baseline(-200.0, 0.0, 100), "-200.0 ± 0.0"),
    ],
)
def test_baseline_as_text(baseline, text):
    assert str(baseline) == text


def test_measurement_in_limited_time_does_not_favour_short_episodes(row_clock):
    register_env("LongOrShort", LongOrShort)
    scores = [measure_baseline("LongOrShort", seed=1000 * seed, seconds=800) for seed in range(20)]
    returns = np.concatenate([each.returns for each in scores if each is not None])
    assert 300 < len(returns) < 2000
    # Half of the episodes are long; 4 standard deviations.
    assert abs(returns.mean() - 0.5) < 4 * 0.5 / len(returns) ** 0.5


def test_measurement_that_is_cut_short_returns_nothing(row_clock):
    register_env("LongOrShort", LongOrShort)
    assert measure_baseline("LongOrShort", seconds=50) is None


def test_measurement_that_did_not_fit_is_not_repeated_with_the_same_time(row_clock):
    register_env("LongOrShort", LongOrShort)
    again = random_baseline.cached_or_measured
    assert again("LongOrShort", seconds=50) is None
    random_baseline.measure_baseline, measure = None, random_baseline.measure_baseline
    try:
        assert again("LongOrShort", seconds=50) is None
    finally:
        random_baseline.measure_baseline = measure
    assert again("LongOrShort", seconds=800).episodes >= 8


def test_run_does_not_measure_atari_games(monkeypatch):
    monkeypatch.setattr(random_baseline, "measure_baseline", None)
    for name in ("ALE/Pong-v5", "PongNoFrameskip-v4", "Pong"):
        assert random_baseline.baseline_of_run(name, EnvOptions(), True) is None


def test_measurement_leaves_global_random_generators_alone():
    class UsesGlobal(LongOrShort):
        def step(self, action):
            random.random(), np.random.random(), torch.rand(1)
            return super().step(action)

    register_env("UsesGlobal", UsesGlobal)

    def draws(measure):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if measure:
            measure_baseline("UsesGlobal", episodes=8)
        return random.random(), np.random.random(), float(torch.rand(1))

    assert draws(True) == draws(False)


def test_cache_is_read_for_the_same_name_and_options_only(own_cache):
    random_baseline.store("CartPole-v1", None, Baseline(20.0, 1.0, 100))
    assert list(own_cache.glob("rookery/random/*.json"))
    assert cached("CartPole-v1") == Baseline(20.0, 1.0, 100)
    assert cached("CartPole-v1", EnvOptions(time_limit=10)) is None
    assert cached("CartPole-v0") is None


def test_cache_keeps_the_baseline_of_more_episodes():
    for episodes in (50, 100, 20, 1):
        random_baseline.store("CartPole-v1", None, Baseline(float(episodes), 1.0, episodes))
    assert cached("CartPole-v1").episodes == 100


def test_changed_source_file_is_another_version(tmp_path, monkeypatch):
    file = tmp_path / "own_world.py"
    file.write_text("import gymnasium\nclass World(gymnasium.Env): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    random_baseline.store("own_world:World", None, Baseline(1.0, 0.1, 100))
    assert cached("own_world:World") == Baseline(1.0, 0.1, 100)
    file.write_text(file.read_text() + "    reward = 2\n")
    assert cached("own_world:World") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"mean": 1}', "\0\1"])
def test_broken_cache_is_ignored_and_replaced(own_cache, content):
    random_baseline.store("CartPole-v1", None, Baseline(20.0, 1.0, 100))
    (file,) = own_cache.glob("rookery/random/*.json")
    file.write_text(content)
    assert cached("CartPole-v1") is None
    measured = random_baseline.cached_or_measured("CartPole-v1", seconds=10.0)
    assert cached("CartPole-v1") == measured != Baseline(20.0, 1.0, 100)


def test_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    random_baseline.store("CartPole-v1", None, Baseline(20.0, 1.0, 100))
    assert cached("CartPole-v1") is None


def test_served_environments_are_never_cached():
    random_baseline.store("tcp://localhost:5555", None, Baseline(1.0, 1.0, 100))
    assert cached("tcp://localhost:5555") is None


def test_run_reports_the_random_return(tmp_path, capsys):
    console = io.StringIO()
    settings = TINY | {"console": console}
    run = rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path / "runs", **settings)
    baseline = cached("CartPole-v1", run.settings.env)
    assert f"random policy: {baseline} ({baseline.episodes} episodes)" in console.getvalue()
    assert run.result["random_return"] == baseline._asdict()
    reported = [row["random_return"] for row in run.progress()]
    assert reported == pytest.approx([baseline.mean] * len(reported))


def test_own_environments_are_not_played_beside_a_run(tmp_path):
    made = []

    class Counted(planted.Healthy):
        def __init__(self):
            made.append(self)

    register_env("Counted", Counted)
    run = rookery.train("ppo", "Counted", runs_dir=tmp_path, **TINY)
    assert "random_return" not in run.result
    before = len(made)
    rookery.train("ppo", "Counted", runs_dir=tmp_path, random_baseline=False, **TINY)
    assert len(made) == 2 * before


def test_random_return_changes_no_weights(tmp_path):
    def weights(**settings):
        run = rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path / "runs", **TINY, **settings)
        assert ("random_return" in run.result) == (not settings)
        return run.saved.tensors["weights"]

    without = weights(random_baseline=False)
    measured, from_cache = weights(), weights()
    for name, tensor in without.items():
        assert torch.equal(tensor, measured[name])
        assert torch.equal(tensor, from_cache[name])


def test_evaluate_random_fills_the_cache(capsys):
    assert main(["evaluate", "random", "CartPole-v1", "--episodes", "20", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert cached("CartPole-v1").mean == pytest.approx(scores["return_mean"])
