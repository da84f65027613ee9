"""The agents of runs: their policies, and how good they are, while training and after."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import Any

import torch

from rookery.backends.common import load_normalizer
from rookery.backends.factory import make_algorithm, spaces_of
from rookery.config import RunConfig, from_values
from rookery.diagnostics.random_baseline import baseline_of, store
from rookery.envs import human_normalized, make_env
from rookery.errors import require
from rookery.learning.evaluate import evaluate
from rookery.learning.learner import Tensors, load_weights
from rookery.learning.policy import Policy, RandomPolicy
from rookery.learning.value_bias import ValueBias
from rookery.runs import checkpoint
from rookery.runs.run import Run

EVALUATION_LANES = 16
EVALUATION_SEED = 1_000_003
LANES_WHILE_TRAINING = 8
SEED_WHILE_TRAINING = 2_000_003


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
        return summary(self.settings.environment, policy, env, episodes, seed) | {
            "policy": "greedy" if greedy else "sampled",
            "epsilon": epsilon,
            "env_steps": self.saved.step,
            "seed": seed,
        }


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


def evaluate_while_training(
    config: RunConfig, tensors: Tensors, device: torch.device
) -> dict[str, float]:
    """Return columns of a report: scores of the greedy policy on environments of its own, and how
    far its values are from the returns there. Seeds are the same every time, so scores are
    comparable."""
    episodes, seed, epsilon = config.eval_episodes, SEED_WHILE_TRAINING, config.eval_epsilon
    env = make_evaluation_env(config, tensors, min(episodes, LANES_WHILE_TRAINING))
    policy = make_policy(config, tensors, env, device, seed=seed, epsilon=epsilon)
    bias = value_bias(config, policy)
    with closing(env), torch.random.fork_rng(devices=[]):
        scores = evaluate(policy, env, episodes, seed, bias).summary()
    names = ("return_mean", "return_std", "return_iqm", "length_mean")
    found = {name: scores[name] for name in names} | (bias.columns() if bias else {})
    columns = {f"eval_{name}": value for name, value in found.items()}
    return columns | {"eval_episodes": episodes, "eval_epsilon": epsilon}


def value_bias(config: RunConfig, policy: Policy) -> ValueBias | None:
    """Return the comparison of a run's values with returns; None if its algorithm has no gamma."""
    gamma = getattr(config.algo, "gamma", None)
    ends = getattr(config.algo, "point_ends_return", False)
    return None if gamma is None else ValueBias(policy, gamma, config.env.one_life, ends)


def evaluate_random(
    environment: str, options: Any, episodes: int = 100, seed: int = EVALUATION_SEED
) -> dict[str, Any]:
    """Scores of a policy that draws its actions evenly: what learning has to beat."""
    env = make_env(environment, options, num_envs=min(episodes, EVALUATION_LANES), training=False)
    policy = RandomPolicy(spaces_of(env), seed)
    scores = summary(environment, policy, env, episodes, seed)
    baseline = baseline_of(scores["return_mean"], scores["return_std"], episodes)
    store(environment, options, baseline)
    return scores | {"policy": "random", "seed": seed}


def summary(
    environment: str, policy: Policy | RandomPolicy, env: Any, episodes: int, seed: int
) -> dict[str, Any]:
    """Return scores with the environment's name, and for Atari the human-normalised score."""
    with closing(env):
        scores = evaluate(policy, env, episodes, seed).summary()
    human = human_normalized(environment, scores["return_mean"])
    extra = {} if human is None else {"human_normalized": human}
    return {"environment": environment, **scores, **extra}


def preprocess_of(env: Any) -> Any:
    """The normalisation of observations in a chain of wrappers, as a function of batches."""
    while env is not None:
        if hasattr(env, "normalized"):
            return env.normalized
        env = getattr(env, "env", None)
    return lambda obs: obs
