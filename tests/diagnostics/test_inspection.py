"""`rookery inspect` finds planted defects, one at a time, and none in healthy environments."""

from __future__ import annotations

import planted_envs as planted
import pytest

import rookery.envs.registry
from rookery.diagnostics import inspection
from rookery.diagnostics.inspection import inspect_env
from rookery.diagnostics.inspection_checks import CHECKS
from rookery.envs import register_env

DEFECTS = {
    "seeding": planted.Unseeded,
    "copied_lanes": planted.SameSeed,
    "final_observation": planted.NewEpisodeAtEnd,
    "limit_terminates": planted.LimitTerminates,
    "failure_truncates": planted.FailureTruncates,
    "outside_space": planted.OutsideSpace,
    "constant_observation": planted.DeadSensor,
    "reused_buffers": planted.ReusedBuffer,
    "nan": planted.NotANumber,
    "reward_scale": planted.LargeRewards,
    "endless": planted.Endless,
    "ignored_actions": planted.IgnoredAction,
    "empty_mask": planted.EmptyMask,
    "autoreset": planted.same_step,
    "raises": planted.Raises,
    "late_reward": planted.LateReward,
    "late_observation": planted.LateObservation,
}
VARIANTS = [
    ("autoreset", planted.hides_ends),
    ("copied_lanes", planted.one_object),
    ("nan", planted.NoReward),
    ("reused_buffers", planted.WritesActions),
    ("reused_buffers", planted.shared_buffer),
]
CLASSIC = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"]
TOY_TEXT = ["Blackjack-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1"]
TOY_TEXT += ["CliffWalkingSlippery-v1", "Taxi-v4"]
BOX2D = ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"]
BOX2D += ["BipedalWalkerHardcore-v3", "CarRacing-v3"]
GAMES = ["Pong", "Breakout", "SpaceInvaders", "Seaquest", "Qbert", "MsPacman", "Freeway"]
GAMES += ["MontezumaRevenge", "Enduro", "Boxing"]
BUILTIN = ["rookery/MaskedCartPole-v1", "rookery/GroupedTetris-v0"]


@pytest.fixture(autouse=True)
def own_names(monkeypatch, tmp_path):
    """Names and cached returns end with the test."""
    monkeypatch.setattr(rookery.envs.registry, "_registered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def found_in(fn, **settings):
    register_env("Planted", fn)
    settings = {"seconds": 30.0, **settings}
    return [finding.check for finding in inspect_env("Planted", **settings).findings]


@pytest.mark.parametrize(("check", "fn"), [*DEFECTS.items(), *VARIANTS])
def test_planted_defect_is_the_only_finding(check, fn, monkeypatch):
    monkeypatch.setattr(inspection, "cached_or_measured", lambda *_: None)
    assert found_in(fn) == [check]


def test_every_check_has_a_planted_defect():
    assert {check.name for check in CHECKS} == set(DEFECTS)


def test_healthy_environment_has_no_finding():
    register_env("Planted", planted.Healthy)
    found = inspect_env("Planted")
    assert (found.findings, found.unchecked) == ([], {})
    assert found.baseline.mean > 5


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Taxi-v4", "Pendulum-v1"])
def test_environments_of_gymnasium_have_no_finding(name):
    assert inspect_env(name, seconds=2.0).findings == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [*CLASSIC, *TOY_TEXT, *BOX2D, *(f"ALE/{game}-v5" for game in GAMES), *BUILTIN]
)
def test_every_known_environment_has_no_finding(name):
    assert inspect_env(name, seconds=20.0).findings == []
