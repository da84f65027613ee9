"""Parts of `rookery inspect`: plays by hand, the picture, and the command."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import planted_envs as planted
import pytest

import rookery.envs.registry
from rookery.cli.main import main
from rookery.diagnostics import inspection_checks
from rookery.diagnostics.inspection import inspect_env
from rookery.diagnostics.inspection_picture import channels, draw_env, view_env
from rookery.diagnostics.inspection_plays import Ended, Play, ended_episodes, first_difference
from rookery.envs import EnvOptions, register_env


@pytest.fixture(autouse=True)
def own_names(monkeypatch, tmp_path):
    """Names and cached returns end with the test."""
    monkeypatch.setattr(rookery.envs.registry, "_registered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# ---------------------------------------------------------------- plays


def play_of(reward, terminated, truncated, obs=None):
    """A Play of lists [T][B]."""
    reward = np.array(reward, float)
    rows, lanes = reward.shape
    return Play(
        obs={(): np.zeros((rows + 1, lanes, 1)) if obs is None else np.array(obs, float)},
        action=np.zeros((rows, lanes), int),
        reward=reward,
        learner_reward=reward,
        terminated=np.array(terminated, bool),
        truncated=np.array(truncated, bool),
        masks=None,
        seconds=1.0,
    )


def test_episodes_by_hand():
    # Lane 0: 2 steps and a termination, the reset row, 1 step and a truncation. Lane 1: no end.
    ends = [[0, 0], [1, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 0], [1, 0]]
    play = play_of([[1, 1]] * 4, *ends)
    assert play.resetting.tolist() == [[False, False]] * 2 + [[True, False], [False, False]]
    assert ended_episodes(play) == [Ended(0, 1, 2, True, False), Ended(0, 3, 1, False, True)]


def test_first_difference_by_hand():
    none = [[0], [0], [0]]
    one = play_of([[1], [1], [1]], none, none, [[[0]], [[1]], [[2]], [[3]]])
    assert first_difference(one, one, 3) is None
    reward = play_of([[1], [1], [2]], none, none, [[[0]], [[1]], [[2]], [[3]]])
    assert first_difference(one, reward, 3) == 2
    assert first_difference(one, reward, 2) is None
    obs = play_of([[1], [1], [1]], none, none, [[[0]], [[1]], [[7]], [[3]]])
    assert first_difference(one, obs, 3) == 1
    start = play_of([[1], [1], [1]], none, none, [[[5]], [[1]], [[2]], [[3]]])
    assert first_difference(one, start, 3) == -1
    shorter = play_of([[1], [1]], none[:2], none[:2], [[[0]], [[1]], [[2]]])
    assert first_difference(one, shorter, 3) == 2


def test_nan_equals_nan():
    play = play_of([[1]], [[0]], [[0]], [[[np.nan]], [[np.nan]]])
    assert first_difference(play, play, 1) is None


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([40] * 6, "6 of 6 episodes terminated after exactly 40 steps"),
        ([40] * 4 + [7, 9, 12, 30], "4 of 8 episodes"),
        ([1] * 9, None),
        ([40, 40, 7, 9, 12, 30], None),
    ],
)
def test_greatest_length_that_is_common_looks_like_a_time_limit(monkeypatch, lengths, message):
    ended = [Ended(0, 0, length, True, False) for length in lengths]
    monkeypatch.setattr(inspection_checks, "ended_episodes", lambda _: ended)
    found = inspection_checks.limit_terminates(SimpleNamespace(free=None))
    assert (message in found) if message else found is None


def test_check_without_evidence_does_not_pass():
    register_env("Planted", planted.Healthy)
    found = inspect_env("Planted", num_envs=1)
    assert found.unchecked == {"copied_lanes": "needs two environments"}
    assert found.to_dict()["checks"]["copied_lanes"] == "not checked"


# ---------------------------------------------------------------- picture


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((84, 84), ["0"]),
        ((4, 84, 84), ["0", "1", "2", "3"]),
        ((96, 96, 3), ["R", "G", "B"]),
        ((2, 96, 96, 3), ["0 R", "0 G", "0 B", "1 R", "1 G", "1 B"]),
    ],
)
def test_every_channel_is_drawn(shape, names):
    image = np.arange(np.prod(shape)).reshape(shape)
    found = channels(image)
    assert [name for name, _ in found] == names
    assert all(channel.ndim == 2 for _, channel in found)
    assert sum(channel.sum() for _, channel in found) == image.sum()


def test_view_shows_frames_and_stack():
    pytest.importorskip("cv2")
    view = view_env("ALE/Pong-v5", EnvOptions(), seed=1, rows=4)
    assert (sorted(view.frames), view.no_frames) == ([0, 2], None)
    assert view.frames[2].shape == (210, 160, 3)
    assert view.seen[()].shape == (4, 4, 84, 84)
    assert np.array_equal(view.seen[()][2, -1], view.raw[()][2, 0])
    assert not view.seen[()][2, 0].any()  # before the episode's first frame


@pytest.mark.parametrize("fn", [planted.Healthy, planted.EmptyMask, planted.Camera])
def test_picture_of_an_environment_that_cannot_be_rendered(fn, tmp_path):
    pytest.importorskip("matplotlib")
    register_env("Planted", fn)
    lines = draw_env("Planted", EnvOptions(frame_stack=2), 1, tmp_path / "picture.png")
    assert lines[0].startswith("cannot be rendered, numbers instead of frames: its render_modes []")
    assert lines[1] == f"picture: {tmp_path / 'picture.png'}"
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_missing_matplotlib_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = draw_env("CartPole-v1", EnvOptions(), 1, tmp_path / "picture.png")
    assert lines == ["picture: needs an extra that is not installed: pip install 'rookery[plots]'"]


# ---------------------------------------------------------------- command


def test_command_prints_facts_and_findings(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register_env("Planted", planted.OutsideSpace)
    assert main(["inspect", "Planted", "--no-picture"]) == 1
    out = capsys.readouterr().out
    assert "Planted: for-loop engine, 4 environments" in out
    assert "error: outside_space: the environment returned an observation of" in out
    assert "remedy: correct the observation space" in out
    assert list(tmp_path.glob("*.png")) == []


def test_command_prints_json(capsys, tmp_path):
    picture = tmp_path / "cart.png"
    assert main(["inspect", "CartPole-v1", "--json", "--picture", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert set(found["checks"].values()) == {"passed"}
    assert found["engine"] == "gymnasium-native"
    assert found["time_limit"] == 500
    assert picture.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["inspect", "one environment", "0"]),
        (["CartPole-v1", "more"], ["one environment", "2"]),
        (["CartPole-v9"], ["CartPole-v9", "CartPole-v1"]),
        (["CartPole-v1", "--envs", "0"], ["envs", "0"]),
        (["CartPole-v1", "--seconds", "0"], ["seconds", "0"]),
        (["CartPole-v1", "--no-picture", "--picture", "a.png"], ["--picture", "--no-picture"]),
        (["CartPole-v1", "--picture", "no/such/folder/a.png"], ["picture", "no/such/folder"]),
    ],
)
def test_bad_input_of_inspect_is_one_line(capsys, args, words):
    assert main(["inspect", *args]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert all(word in lines[0] for word in words)
