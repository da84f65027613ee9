"""Evaluation while training."""

from __future__ import annotations

from typing import Any

import torch

from rookery.backends.components import Parts, spaces_of
from rookery.envs import make_env, statistics
from rookery.learning.evaluate import evaluate
from rookery.learning.policy import Policy

SEED = 2_000_003
LANES = 8


class Examiner:
    """Scores the learner's policy every so many steps, on environments of its own."""

    def __init__(self, every: int | None, episodes: int, epsilon: float):
        self.every = every
        self.episodes = episodes
        self.epsilon = epsilon

    def due(self, before: int, now: int) -> bool:
        """Whether the steps between reach a multiple of the period."""
        return self.every is not None and now // self.every > before // self.every

    def scores(self, parts: Parts) -> dict[str, float]:
        """Columns of a report; the same seeds every time, so that scores can be compared."""
        env = self.make_env(parts)
        device = parts.learner.device
        policy = Policy(parts.algorithm, spaces_of(env), device, seed=SEED, epsilon=self.epsilon)
        try:
            with torch.random.fork_rng(devices=[]):
                summary = evaluate(policy, env, self.episodes, SEED).summary()
        finally:
            env.close()
        return {
            "eval_return_mean": summary["return_mean"],
            "eval_return_std": summary["return_std"],
            "eval_return_iqm": summary["return_iqm"],
            "eval_length_mean": summary["length_mean"],
            "eval_episodes": self.episodes,
            "eval_epsilon": self.epsilon,
        }

    def make_env(self, parts: Parts) -> Any:
        """The run's environment as for evaluation, its normalisation as it stands."""
        config = parts.config
        lanes = min(self.episodes, LANES)
        env = make_env(config.environment, config.env, num_envs=lanes, training=False)
        trained = statistics(parts.env)
        for name, moments in statistics(env).items():
            moments.load(trained[name].state())
        return env
