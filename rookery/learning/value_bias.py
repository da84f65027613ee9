"""Values that a policy predicts, compared with the returns of the episodes that it then plays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.data.tree import Tree
from rookery.learning.policy import Policy


class ValueBias:
    """Means of predicted values and of discounted returns over the same steps.

    Both are of what the learner learns: rewards as it sees them, clipped or normalised, and
    episodes as it sees them, which also end with a lost life if `lives_end` and with a reward other
    than 0 if `rewards_end`. Only steps of episodes that terminated count: the return of a truncated
    one is not known.
    """

    def __init__(
        self, policy: Policy, gamma: float, lives_end: bool = False, rewards_end: bool = False
    ):
        self.policy = policy
        self.gamma = gamma
        self.lives_end = lives_end
        self.rewards_end = rewards_end
        self.has_values = True
        """False once it is known that the algorithm computes none."""
        self.predicted: np.ndarray | None = None
        self.count = 0
        """Steps in the sums."""
        self.value_sum = 0.0
        self.return_sum = 0.0

    def begin(self, lanes: int, info: Mapping[str, Any]) -> None:
        """Start on new episodes, given the info of their reset."""
        self.values = [array("d") for _ in range(lanes)]
        self.rewards = [array("d") for _ in range(lanes)]
        self.lives = np.array(info["lives"]) if self.lives_end else np.zeros(lanes)

    def predict(self, obs: Tree, reward: np.ndarray, state: Tree) -> None:
        """Note the values of observations [B, ...], before the environment is stepped: it may
        reuse their buffers."""
        if self.has_values:
            self.predicted = self.policy.values(obs, reward, state)
            self.has_values = self.predicted is not None

    def add(
        self,
        played: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: Mapping[str, Any],
    ) -> None:
        """Add a step of the lanes `played`; what an episode's end completes is counted."""
        if self.predicted is None:
            return
        ended = terminated | (self.rewards_end & (reward != 0))
        if self.lives_end:
            # As OneLife: a count that falls to 0 comes some frames before the game's end.
            lives = np.array(info["lives"])
            ended = ended | ((lives < self.lives) & (lives > 0) & ~truncated)
            self.lives = lives
        for lane in (played & ~info.get("lost", False)).nonzero()[0]:
            self.values[lane].append(self.predicted[lane])
            self.rewards[lane].append(reward[lane])
            if ended[lane]:
                self.count_episode(self.values[lane], self.rewards[lane])
        for lane in (ended | truncated).nonzero()[0]:
            self.values[lane], self.rewards[lane] = array("d"), array("d")

    def count_episode(self, values: array[float], rewards: array[float]) -> None:
        """Add a whole episode to the sums."""
        self.count += len(values)
        self.value_sum += sum(values)
        following = 0.0
        for reward in reversed(rewards):
            following = reward + self.gamma * following
            self.return_sum += following

    def columns(self) -> dict[str, float]:
        """Return both means and their difference; empty if no episode terminated, or if the
        algorithm computes no values."""
        if self.count == 0:
            return {}
        value, discounted = self.value_sum / self.count, self.return_sum / self.count
        return {
            "value_mean": value,
            "discounted_return_mean": discounted,
            "value_bias": value - discounted,
        }
