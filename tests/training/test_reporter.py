"""Counters of a run: which share of its episodes a time limit ended."""

from __future__ import annotations

import gymnasium as gym
import pytest

import rookery
from rookery.backends.base import Report, WorkerProgress
from rookery.data.steps import FinishedEpisode
from rookery.envs import register_env
from rookery.learning.actor import Times
from rookery.training.reporter import Progress


def of_length(length, ending):
    """Return a class of environments with episodes of `length` steps, ended as `ending` tells of
    each: a string of t (truncated), e (terminated) and b (both), over and over."""

    class Ending(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,))
        action_space = gym.spaces.Discrete(2)
        episode = -1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.episode, self.steps = self.episode + 1, 0
            return self.observation_space.low, {}

        def step(self, action):
            self.steps += 1
            over, how = self.steps == length, ending[self.episode % len(ending)]
            return self.observation_space.low, 1.0, over and how != "t", over and how != "e", {}

    return Ending


register_env("NeverEnds", of_length(10**9, "e"), replace=True)
register_env("Terminates", of_length(5, "e"), replace=True)
register_env("EndsBothWays", of_length(5, "b"), replace=True)
register_env("EndsByTurns", of_length(5, "tteb"), replace=True)


def train(tmp_path, environment, **settings):
    small = {"use_preset": False, "env_steps": 240, "envs": 2, "threads": 1, "seed": 1}
    small |= {"random_baseline": False, "algo": {"rollout_steps": 12, "epochs": 1}}
    return rookery.train("ppo", environment, runs_dir=tmp_path, **(small | settings))


def share(run):
    return run.progress()[-1]["episode_truncated_share"]


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        ("NeverEnds", {"time_limit": 6}, 1),
        ("Terminates", {}, 0),
        ("Terminates", {"time_limit": 3}, 1),
        # Both on the same step: the episode terminated.
        ("Terminates", {"time_limit": 5}, 0),
        ("EndsBothWays", {}, 0),
    ],
)
def test_time_limits_truncate_and_termination_wins(environment, options, expected, tmp_path):
    assert share(train(tmp_path, environment, env=options)) == expected


def test_a_mixture_is_counted_by_hand(tmp_path):
    # 12 rounds of 12 rows, episodes of 5 steps and a reset row: 24 a lane, six times tteb.
    run = train(tmp_path, "EndsByTurns")
    assert run.result["episodes"] == 48
    assert share(run) == 0.5


def add(progress, ending):
    """Add episodes that ended as the letters of `ending` say."""
    episodes = [FinishedEpisode(1.0, 5, truncated=how == "t") for how in ending]
    worker = WorkerProgress(5 * len(episodes), episodes, [], Times(), False, 1.0, memory_mb=0.0)
    progress.add(Report([worker], 0, 0.0, None))


def test_the_share_is_over_the_window_of_the_mean_return():
    progress = Progress()
    assert "episode_truncated_share" not in progress.columns()
    add(progress, "t" * 60 + "e" * 60)
    assert progress.columns()["episode_truncated_share"] == 0.4


def test_a_resumed_run_goes_on_counting():
    first, second = Progress(), Progress()
    add(first, "ttte")
    second.load(first.state())
    add(second, "eeee")
    assert second.columns()["episode_truncated_share"] == 3 / 8


def test_a_checkpoint_without_it_counts_from_the_resumption_on(tmp_path):
    run = train(tmp_path, "Terminates", env_steps=120)
    meta = run.saved.meta
    assert meta["truncated"] == [False] * len(meta["returns"])
    del meta["truncated"]
    progress = Progress()
    progress.load(meta)
    assert "episode_truncated_share" not in progress.columns()
    assert "episode_return_mean" in progress.columns()
    add(progress, "te")
    assert progress.columns()["episode_truncated_share"] == 0.5
