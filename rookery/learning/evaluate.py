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

RESAMPLES = 2_000


@dataclass(frozen=True)
class Scores:
    """Returns and lengths of evaluated episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    def summary(self) -> dict[str, Any]:
        """Return mean, deviation, and the interquartile mean with its 95 % bootstrap interval."""
        low, high = bootstrap_interval(self.returns)
        return {
            "episodes": len(self.returns),
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "return_iqm": interquartile_mean(self.returns),
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


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half; values at its edges count in part."""
    ordered = np.sort(values)
    edges = np.arange(len(ordered) + 1) / len(ordered)
    share = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float((ordered * share).sum() / share.sum())


def bootstrap_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the interquartile mean."""
    random = np.random.default_rng(0)
    draws = random.choice(values, (RESAMPLES, len(values)))
    means = np.array([interquartile_mean(draw) for draw in draws])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
