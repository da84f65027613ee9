"""Evaluation: exactly N episodes, and statistics of their returns."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rookery.algorithms.base import carry
from rookery.data.steps import FinishedEpisode
from rookery.learning.actor import episodes_per_lane, finished_episode
from rookery.learning.policy import Policy, RandomPolicy
from rookery.learning.value_bias import ValueBias
from rookery.score_statistics import estimate


@dataclass(frozen=True)
class Scores:
    """Returns and lengths of evaluated episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    def summary(self) -> dict[str, Any]:
        """Return mean, deviation, and the interquartile mean with its 95 % bootstrap interval."""
        iqm, low, high = map(float, estimate(self.returns))
        return {
            "episodes": len(self.returns),
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "return_iqm": iqm,
            "return_iqm_low": low,
            "return_iqm_high": high,
            "length_mean": float(self.lengths.mean()),
        }


def evaluate(
    policy: Policy | RandomPolicy,
    env: VectorEnv,
    episodes: int,
    seed: int,
    bias: ValueBias | None = None,
) -> Scores:
    """Play exactly `episodes` episodes on `env`; each lane plays a number fixed beforehand.

    Taking whichever episodes end first would favour short ones. What a lane plays after its
    share is not counted. Steps that count are added to `bias`, if it is given.
    """
    lanes = env.num_envs
    left = episodes_per_lane(episodes, lanes)
    played: list[FinishedEpisode] = []
    obs, info = env.reset(seed=seed)
    state = policy.begin(lanes)
    if bias is not None:
        bias.begin(lanes, info)
    resetting = np.zeros(lanes, dtype=bool)
    reward = np.zeros(lanes)
    while (left > 0).any():
        action, state_after = policy.decide(obs, reward, state)
        if bias is not None:
            bias.predict(obs, reward, state)
        obs, reward, terminated, truncated, info = env.step(action)
        if bias is not None:
            bias.add((left > 0) & ~resetting, reward, terminated, truncated, info)
        for notice in info.get("notices", ()):
            print(notice, file=sys.stderr)
        if "episode" in info:
            ended = info["episode"]["done"] & (left > 0)
            left -= ended
            played += [finished_episode(info["episode"], lane) for lane in ended.nonzero()[0]]
        reward = np.where(resetting, 0.0, reward)
        state = carry(state_after, resetting)
        resetting = terminated | truncated
    return Scores(
        np.array([episode.episode_return for episode in played]),
        np.array([episode.length for episode in played]),
    )
