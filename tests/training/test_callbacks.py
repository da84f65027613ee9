"""Callbacks hear of everything that happens in a run, in the process that writes its folder."""

from __future__ import annotations

import json

import gymnasium as gym
import pytest

import rookery
from rookery.cli.main import main
from rookery.envs import register_env
from rookery.errors import BadInput, RookeryError

SMALL = {
    "use_preset": False,
    "env_steps": 1_500,
    "envs": 4,
    "threads": 1,
    "checkpoint_steps": 500,
    "algo": {"rollout_steps": 32},
}
MODULE = """
import json, os
import rookery

class Recorder(rookery.Callback):
    def on_start(self, run):
        self.folder, self.reports, self.episodes = run.path, 0, 0

    def on_report(self, report):
        self.reports += 1

    def on_episode(self, episode):
        self.episodes += 1

    def on_end(self, result):
        seen = {"reports": self.reports, "episodes": self.episodes, "pid": os.getpid()}
        name = f"seen_{os.getpid()}.json"
        (self.folder / name).write_text(json.dumps(seen))

class Failing(rookery.Callback):
    def on_report(self, report):
        raise ValueError("this callback fails")

NotOne = dict
"""


class Spy(rookery.Callback):
    """Remembers every call."""

    def __init__(self):
        self.calls = []

    def seen(self, name):
        return [value for called, value in self.calls if called == name]

    def on_start(self, run):
        self.calls.append(("start", run))

    def on_report(self, report):
        self.calls.append(("report", dict(report)))

    def on_episode(self, episode):
        self.calls.append(("episode", episode))

    def on_update(self, update):
        self.calls.append(("update", update))

    def on_checkpoint(self, path):
        self.calls.append(("checkpoint", path))

    def on_end(self, result):
        self.calls.append(("end", result))

    def close(self):
        self.calls.append(("close", None))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a user's own, in a folder on the search path of this and other processes."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_callbacks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return "own_callbacks"


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ppo"},
        {
            "algorithm": "apex",
            "backend": "threads",
            "actors": 2,
            "algo": {"capacity": 2_000, "warm_up": 100, "rollout_steps": 4, "batch_size": 16},
        },
    ],
)
def test_a_callback_hears_of_the_whole_run(settings, tmp_path):
    spy = Spy()
    given = SMALL | {k: v for k, v in settings.items() if k != "algorithm"}
    run = rookery.train(
        settings["algorithm"], "CartPole-v1", runs_dir=tmp_path, callbacks=[spy], **given
    )
    names = [name for name, _ in spy.calls]
    assert names[0] == "start"
    assert names[-2:] == ["end", "close"]
    assert spy.seen("start")[0].path == run.path
    rows = [row["env_steps"] for row in run.progress()]
    assert [report["env_steps"] for report in spy.seen("report")] == rows
    assert spy.seen("report")[-1]["env_steps"] == run.result["env_steps"]
    assert len(spy.seen("episode")) == run.result["episodes"]
    assert not any(episode.truncated for episode in spy.seen("episode"))
    updates = [update.updates for update in spy.seen("update")]
    assert updates == sorted(set(updates))
    assert updates[-1] == run.result["updates"]
    assert spy.seen("checkpoint")[-1] == run.saved.path
    assert spy.seen("end")[0]["status"] == "finished"


def test_a_failed_run_closes_callbacks_without_an_end(tmp_path):
    class Breaks(gym.Wrapper):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps > 100:
                raise ValueError("broken")
            return super().step(action)

    register_env("Breaks", lambda: Breaks(gym.make("CartPole-v1")), replace=True)
    spy = Spy()
    with pytest.raises(RookeryError, match="broken"):
        rookery.train("ppo", "Breaks", runs_dir=tmp_path, callbacks=[spy], **SMALL)
    assert spy.seen("end") == []
    assert spy.calls[-1] == ("close", None)


def test_callbacks_are_named_on_the_command_line(module, tmp_path, capsys):
    command = ["train", "ppo", "CartPole-v1", "--no-preset", "--env-steps", "600", "--threads", "1"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--name", "run"]
    assert main([*command, "--callbacks", f"{module}:Recorder"]) == 0
    (file,) = (tmp_path / "runs" / "run").glob("seen_*.json")
    result = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert json.loads(file.read_text())["episodes"] == result["episodes"]
    config = (tmp_path / "runs" / "run" / "config.json").read_text()
    assert module not in config  # a run's folder names no code that would be run on resuming


def test_on_ranks_the_first_rank_calls_back(module, tmp_path):
    run = rookery.train(
        *("ppo", "CartPole-v1"),
        **SMALL | {"backend": "ranks", "actors": 2, "learner": {"transport": "gloo"}},
        runs_dir=tmp_path,
        callbacks=[f"{module}:Recorder"],
    )
    (file,) = run.path.glob("seen_*.json")
    seen = json.loads(file.read_text())
    assert seen["pid"] == run.result["pid"]
    assert seen["episodes"] == run.result["episodes"]


def test_objects_cannot_be_sent_to_ranks(tmp_path):
    settings = SMALL | {"backend": "ranks", "actors": 2}
    with pytest.raises(BadInput, match=r"callbacks: objects .* package\.module:Name"):
        rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, callbacks=[Spy()], **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Name", 'cannot import "no_such_module"'),
        ("own_callbacks", "expected package.module:Name"),
        ("own_callbacks:Missing", "is not a subclass of rookery.Callback"),
        ("own_callbacks:NotOne", "is not a subclass of rookery.Callback"),
        (3, "expected an object of a subclass of rookery.Callback, got 3"),
    ],
)
def test_what_is_no_callback_is_refused_before_the_run_starts(module, name, message, tmp_path):
    folder = tmp_path / "runs"
    with pytest.raises(BadInput, match=message):
        rookery.train("ppo", "CartPole-v1", runs_dir=folder, callbacks=[name], **SMALL)
    assert not folder.exists()


def test_an_exception_in_a_callback_ends_the_run(module, tmp_path):
    with pytest.raises(ValueError, match="this callback fails"):
        rookery.train(
            "ppo", "CartPole-v1", runs_dir=tmp_path, callbacks=[f"{module}:Failing"], **SMALL
        )
