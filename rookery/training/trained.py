"""A run that has an agent: its policy, and how good it is."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from rookery.backends.factory import spaces_of
from rookery.config import RunConfig, from_values
from rookery.envs import human_normalized, make_env
from rookery.errors import require
from rookery.learning.evaluate import evaluate
from rookery.learning.policy import Policy, RandomPolicy
from rookery.runs import checkpoint
from rookery.runs.run import Run
from rookery.training.evaluation import make_evaluation_env, make_policy

EVALUATION_LANES = 16
EVALUATION_SEED = 1_000_003


class TrainedRun(Run):
    """A run's folder with the agent of its newest whole checkpoint, or of another one."""

    checkpoint_name: str | None = None

    @property
    def settings(self) -> RunConfig:
        """The run's config."""
        return from_values(self.config, {})

    def at(self, name: str | int | None) -> TrainedRun:
        """The run with the agent of another checkpoint: "best" by evaluation while training,
        "last", or that of a step; None: the newest whole one."""
        other = TrainedRun(self.path, self.config)
        other.checkpoint_name = None if name is None else str(name)
        return other

    @cached_property
    def saved(self) -> checkpoint.Checkpoint:
        """The checkpoint the agent comes from."""
        name = self.checkpoint_name
        if name is None:
            return checkpoint.load_newest(self.checkpoints)
        if name.isdigit():
            return checkpoint.load_checkpoint(checkpoint.path_of(self.checkpoints, int(name)))
        require(
            name in ("best", "last"), f'checkpoint: expected best, last or a step, got "{name}"'
        )
        link = self.checkpoints / name
        require(
            link.exists(),
            f"checkpoint: the run has none labelled {name}; evaluation while training makes one:"
            " --eval-steps N",
        )
        return checkpoint.load_checkpoint(link.resolve())

    @property
    def policy(self) -> Policy:
        """The agent, greedy: `policy(obs) -> action`, `policy.reset()` between episodes."""
        return self.make_policy(greedy=True, seed=0)

    def make_policy(self, greedy: bool, seed: int, epsilon: float = 0.0) -> Policy:
        """Return the agent; if not greedy, its actions are drawn as in training."""
        env, cpu = self.make_env(1), torch.device("cpu")
        tensors, preprocess = self.saved.tensors, preprocess_of(env)
        env.close()
        return make_policy(self.settings, tensors, env, cpu, greedy, seed, epsilon, preprocess)

    def make_env(self, lanes: int) -> Any:
        """Return the run's environments for evaluation, normalised as in the checkpoint."""
        return make_evaluation_env(self.settings, self.saved.tensors, lanes)

    def evaluate(
        self,
        episodes: int = 100,
        seed: int = EVALUATION_SEED,
        greedy: bool = True,
        epsilon: float = 0.0,
    ) -> dict[str, Any]:
        """Scores of exactly `episodes` episodes on environments of their own, a share `epsilon` of
        the actions drawn evenly."""
        policy = self.make_policy(greedy, seed, epsilon)
        env = self.make_env(min(episodes, EVALUATION_LANES))
        try:
            scores = evaluate(policy, env, episodes, seed)
        finally:
            env.close()
        return summary(self.settings.environment, scores.summary()) | {
            "policy": "greedy" if greedy else "sampled",
            "epsilon": epsilon,
            "env_steps": self.saved.step,
            "seed": seed,
        }


def evaluate_random(
    environment: str, options: Any, episodes: int = 100, seed: int = EVALUATION_SEED
) -> dict[str, Any]:
    """Scores of a policy that draws its actions evenly: what learning has to beat."""
    env = make_env(environment, options, num_envs=min(episodes, EVALUATION_LANES), training=False)
    policy = RandomPolicy(spaces_of(env), seed)
    try:
        scores = evaluate(policy, env, episodes, seed)
    finally:
        env.close()
    return summary(environment, scores.summary()) | {"policy": "random", "seed": seed}


def summary(environment: str, scores: dict[str, Any]) -> dict[str, Any]:
    """Scores with the environment's name, and for Atari the human-normalised score."""
    human = human_normalized(environment, scores["return_mean"])
    extra = {} if human is None else {"human_normalized": human}
    return {"environment": environment, **scores, **extra}


def preprocess_of(env: Any) -> Any:
    """The normalisation of observations in a chain of wrappers, as a function of batches."""
    layer = env
    while layer is not None:
        if hasattr(layer, "normalized"):
            return layer.normalized
        layer = getattr(layer, "env", None)
    return lambda obs: obs
