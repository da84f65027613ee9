"""The training runs of the benchmark: those that faults are planted in, and healthy ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Settings = Mapping[str, Any]
"""Options of `rookery train` by name, without the dashes."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A training run: algorithm, environment, and options."""

    algorithm: str
    environment: str
    settings: Settings = field(default_factory=dict)
    ranks: int = 1
    """Processes of the run."""

    def with_settings(self, settings: Settings) -> RunSettings:
        """Return the run with some settings changed."""
        return replace(self, settings={**self.settings, **settings})


PPO = RunSettings(algorithm="ppo", environment="CartPole-v1", settings={"env-steps": 60_000})
DQN = RunSettings(algorithm="dqn", environment="CartPole-v1", settings={"env-steps": 40_000})
APEX = RunSettings(
    algorithm="apex",
    environment="CartPole-v1",
    settings={"env-steps": 40_000, "backend": "threads", "actors": 1},
)
ACROBOT = RunSettings(algorithm="ppo", environment="Acrobot-v1", settings={"env-steps": 100_000})
PATIENCE = RunSettings(
    algorithm="ppo",
    environment="planted/Patience-v0",
    settings={
        "no-preset": True,
        "env-steps": 40_000,
        "envs": 16,
        "algo.gamma": 0.9,
        "algo.rollout_steps": 64,
        "algo.learning_rate": 1e-3,
    },
)
LOTTERY = RunSettings(
    algorithm="dqn",
    environment="planted/Lottery-v0",
    settings={
        "no-preset": True,
        "env-steps": 30_000,
        "envs": 8,
        "net.hidden": "32,32",
        "algo.gamma": 0.5,
        "algo.alpha": 0.6,
        "algo.beta": 1,
        "algo.loss": "mse",
        "algo.learning_rate": 1e-3,
        "algo.warm_up": 500,
        "algo.capacity": 20_000,
        "algo.batch_size": 64,
        "algo.target_period": 100,
        "algo.epsilon_steps": 10_000,
        "algo.epsilon_end": 0.1,
    },
)
CATCH = RunSettings(
    algorithm="ppo",
    environment="planted/Catch-v0",
    settings={
        "no-preset": True,
        "env-steps": 30_000,
        "envs": 16,
        "threads": 1,
        "net.encoder": "small",
        "net.image_features": 128,
        "algo.rollout_steps": 32,
        "algo.learning_rate": 1e-3,
    },
)
CODES = RunSettings(
    algorithm="ppo",
    environment="rookery/Synthetic-v1",
    settings={
        "no-preset": True,
        "env-steps": 40_000,
        "envs": 16,
        "env.kwargs": '{"task": true}',
        "algo.gamma": 0.01,
        "algo.rollout_steps": 32,
        "algo.learning_rate": 2e-3,
    },
)
"""The action must name a code in the observation: with late rewards or late observations nothing
can be learned."""
RANKS = replace(
    CODES.with_settings(
        {"env-steps": 4_000, "backend": "ranks", "envs": 2, "algo.rollout_steps": 16}
    ),
    ranks=2,
)
"""Ends before the task is learned: with equal ranks it has half of the data."""


def preset(algorithm: str, environment: str, **settings: Any) -> RunSettings:
    """Return a run with the preset for its environment."""
    return RunSettings(algorithm=algorithm, environment=environment, settings=settings)


HEALTHY_RUNS: tuple[tuple[RunSettings, tuple[int, ...]], ...] = (
    (preset("ppo", "CartPole-v1"), (1, 2, 3, 4)),
    (preset("ppo", "Acrobot-v1"), (1, 2, 3)),
    (preset("ppo", "Pendulum-v1"), (1, 2, 3)),
    (preset("ppo", "rookery/MaskedCartPole-v1"), (1, 2)),
    (preset("ppo", "rookery/GroupedTetris-v0"), (1, 2)),
    (preset("vpg", "CartPole-v1"), (1, 2, 3)),
    (preset("vpg", "rookery/Synthetic-v1", preset="learnable"), (1, 2)),
    (preset("dqn", "CartPole-v1"), (1, 2, 3, 4)),
    (preset("apex", "CartPole-v1"), (1, 2, 3)),
    (preset("r2d2", "rookery/Recall-v1"), (1, 2)),
    (CATCH, (1, 2, 3)),
    (CODES, (1, 2, 3)),
)
"""Runs that learn, with their seeds: every preset that ends within two minutes on two cores, and
some of the runs of the faults."""
