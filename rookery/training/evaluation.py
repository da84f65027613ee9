"""Policies from checkpoint contents, and evaluation during training."""

from __future__ import annotations

from typing import Any

import torch

from rookery.backends.base import CheckpointState
from rookery.backends.contents import Tensors, load_normalizer, load_weights
from rookery.backends.factory import make_algorithm, spaces_of
from rookery.config import RunConfig
from rookery.envs import make_env
from rookery.learning.evaluate import evaluate
from rookery.learning.policy import Policy

SEED = 2_000_003
LANES = 8


def make_evaluation_env(config: RunConfig, tensors: Tensors, lanes: int) -> Any:
    """Return the run's environments for evaluation, normalised as in the checkpoint."""
    env = make_env(config.environment, config.env, num_envs=lanes, training=False)
    load_normalizer(env, tensors)
    return env


def make_policy(
    config: RunConfig,
    tensors: Tensors,
    env: Any,
    device: torch.device,
    greedy: bool = True,
    seed: int = 0,
    epsilon: float = 0.0,
    preprocess: Any = lambda obs: obs,
) -> Policy:
    """Return the policy of a checkpoint for environments like `env`."""
    with torch.random.fork_rng(devices=[]):
        algorithm = make_algorithm(config, spaces_of(env), device)
    algorithm.network.to(device)
    load_weights(algorithm, tensors)
    return Policy(algorithm, spaces_of(env), device, preprocess, greedy, seed, epsilon)


class Evaluation:
    """Evaluates the greedy policy every `eval_steps` steps, on environments of its own."""

    def __init__(self, config: RunConfig, device: torch.device):
        self.config = config
        self.device = device

    def due(self, before: int, now: int) -> bool:
        """True if the steps from `before` to `now` pass a multiple of eval_steps."""
        every = self.config.eval_steps
        return every is not None and now // every > before // every

    def scores(self, state: CheckpointState) -> dict[str, float]:
        """Return columns of a report; seeds are the same every time, so scores are comparable."""
        config = self.config
        env = make_evaluation_env(config, state.tensors, min(config.eval_episodes, LANES))
        policy = make_policy(
            config, state.tensors, env, self.device, seed=SEED, epsilon=config.eval_epsilon
        )
        try:
            with torch.random.fork_rng(devices=[]):
                summary = evaluate(policy, env, config.eval_episodes, SEED).summary()
        finally:
            env.close()
        return {
            "eval_return_mean": summary["return_mean"],
            "eval_return_std": summary["return_std"],
            "eval_return_iqm": summary["return_iqm"],
            "eval_length_mean": summary["length_mean"],
            "eval_episodes": config.eval_episodes,
            "eval_epsilon": config.eval_epsilon,
        }
