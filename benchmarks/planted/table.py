"""The table of planted faults, and the healthy runs that must raise no alarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from planted import environments as envs
from planted import plants

Settings = Mapping[str, Any]
"""Options of `rookery train` by name, without the dashes."""

PPO = {"env-steps": 60_000}
DQN = {"env-steps": 40_000}
LOTTERY = {
    "no-preset": True,
    "env-steps": 20_000,
    "envs": 8,
    "net.hidden": "32,32",
    "algo.alpha": 0.6,
    "algo.beta": 1,
    "algo.loss": "mse",
    "algo.learning_rate": 1e-3,
    "algo.warm_up": 500,
    "algo.capacity": 20_000,
    "algo.target_period": 100,
    "algo.epsilon_steps": 10_000,
    "algo.epsilon_end": 0.1,
    "algo.batch_size": 64,
}
CATCH = {
    "no-preset": True,
    "env-steps": 60_000,
    "envs": 16,
    "net.encoder": "small",
    "net.image_features": 128,
    "algo.rollout_steps": 32,
    "algo.learning_rate": 1e-3,
}
SYNTHETIC = {
    "no-preset": True,
    "env-steps": 40_000,
    "envs": 16,
    "env.kwargs": '{"task": true}',
    "algo.gamma": 0.01,
    "algo.rollout_steps": 32,
    "algo.learning_rate": 2e-3,
}
LEARNABLE = {"preset": "learnable"}
PATIENCE = {
    "no-preset": True,
    "env-steps": 40_000,
    "envs": 16,
    "algo.gamma": 0.9,
    "algo.rollout_steps": 64,
    "algo.learning_rate": 1e-3,
    "algo.entropy_coef": 0.001,
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, the run that it is planted in, and the findings that name it."""

    name: str
    planted: str
    """What is planted, in one sentence."""
    place: Literal["environment", "algorithm", "network", "settings"]
    algorithm: str
    environment: str
    settings: Settings = field(default_factory=dict)
    """Settings of the healthy and of the broken run."""
    broken: Settings = field(default_factory=dict)
    """Settings of the broken run alone."""
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Breaks the package while it is entered."""
    rules: frozenset[str] = frozenset()
    """Findings of `doctor RUN` that name it."""
    checks: frozenset[str] = frozenset()
    """Findings of `inspect ENV` that name it."""
    probes: frozenset[int] = frozenset()
    """Probes of `doctor ALGO` of which the first that fails names it."""
    probe_settings: Settings = field(default_factory=dict)
    """Settings of these."""
    unit: float = 1.0
    """Returns of the broken run are so many times those of the healthy one."""
    ranks: int = 1
    """Processes of each run."""


def rules(*names: str) -> frozenset[str]:
    return frozenset(names)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            name="termination_as_truncation",
            planted="values bootstrap from the last observation of a terminated episode",
            place="algorithm",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            plant=plants.termination_as_truncation,
            rules=rules("values_off_scale"),
            probes=frozenset({1}),
        ),
        Fault(
            name="truncation_as_termination",
            planted="values do not bootstrap from the last observation of a truncated episode",
            place="algorithm",
            algorithm="ppo",
            environment="planted/Patience-v0",
            settings=PATIENCE,
            plant=plants.truncation_as_termination,
            probes=frozenset({8}),
        ),
        Fault(
            name="target_never_updated",
            planted="the target network keeps its first weights",
            place="algorithm",
            algorithm="dqn",
            environment="CartPole-v1",
            settings=DQN,
            plant=plants.target_never_updated,
            rules=rules("target_never_moves"),
        ),
        Fault(
            name="loss_detached",
            planted="the policy's loss has no gradient",
            place="algorithm",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            plant=plants.policy_loss_detached,
            rules=rules("zero_gradient", "layer_without_gradient", "frozen_weights"),
        ),
        Fault(
            name="learning_rate_high",
            planted="the learning rate is 100 times too large",
            place="settings",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            broken={"algo.learning_rate": 0.2},
            rules=rules("learning_rate_high"),
        ),
        Fault(
            name="learning_rate_low",
            planted="the learning rate is 100 times too small",
            place="settings",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            broken={"algo.learning_rate": 2e-5},
            rules=rules("learning_rate_low"),
        ),
        Fault(
            name="dead_units",
            planted="biases of -10 keep every ReLU at 0",
            place="network",
            algorithm="dqn",
            environment="CartPole-v1",
            settings=DQN,
            plant=plants.dead_units,
            rules=rules("dead_units"),
        ),
        Fault(
            name="pixels_not_scaled",
            planted="the network gets pixels of 0 to 255",
            place="network",
            algorithm="ppo",
            environment="planted/Catch-v0",
            settings=CATCH,
            plant=plants.pixels_not_scaled,
            rules=rules("obs_unscaled"),
        ),
        Fault(
            name="wrong_statistics",
            planted="observations are divided by 1,000 times their deviation",
            place="environment",
            algorithm="ppo",
            environment="CartPole-v1",
            settings={**PPO, "env.normalize_obs": True},
            plant=plants.wrong_statistics,
            rules=rules("obs_unscaled", "obs_statistics"),
        ),
        Fault(
            name="stale_actors",
            planted="actors on threads play with the first weights for ever",
            place="algorithm",
            algorithm="apex",
            environment="CartPole-v1",
            settings={**DQN, "backend": "threads", "actors": 1},
            plant=plants.stale_actors,
            rules=rules("stale_actors"),
        ),
        Fault(
            name="importance_weights_dropped",
            planted="prioritized windows all have the weight 1",
            place="algorithm",
            algorithm="dqn",
            environment="planted/Lottery-v0",
            settings=LOTTERY,
            plant=plants.no_importance_weights,
            rules=rules("importance_weights_dropped"),
        ),
        Fault(
            name="reward_sign",
            planted="the learner gets rewards with the wrong sign",
            place="algorithm",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            plant=partial(envs.outside, partial(envs.ScaledReward, factor=-1.0)),
            rules=rules("return_falls"),
        ),
        Fault(
            name="reward_delayed",
            planted="each reward comes one step late",
            place="environment",
            algorithm="ppo",
            environment="rookery/Synthetic-v1",
            settings=SYNTHETIC,
            plant=partial(envs.inside, envs.LateReward),
            checks=rules("late_reward"),
        ),
        Fault(
            name="observation_delayed",
            planted="each observation comes one step late",
            place="environment",
            algorithm="ppo",
            environment="rookery/Synthetic-v1",
            settings=SYNTHETIC,
            plant=partial(envs.inside, envs.LateObservation),
            checks=rules("late_observation"),
        ),
        Fault(
            name="entropy_coefficient",
            planted="the entropy bonus is 100 times too large",
            place="settings",
            algorithm="ppo",
            environment="CartPole-v1",
            settings={**PPO, "algo.entropy_coef": 0.01},
            broken={"algo.entropy_coef": 1.0},
            rules=rules("entropy_stuck"),
        ),
        Fault(
            name="frozen_layer",
            planted="the policy's last layer gets no gradient",
            place="network",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            plant=plants.frozen_head,
            rules=rules("frozen_weights", "layer_without_gradient"),
        ),
        Fault(
            name="advantage_scale",
            planted="rewards are 1,000 times larger and advantages are not normalised",
            place="environment",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            broken={"algo.normalize_advantage": False},
            plant=partial(envs.inside, partial(envs.ScaledReward, factor=1000.0)),
            rules=rules("advantage_scale"),
            unit=1000.0,
        ),
        Fault(
            name="replay_small",
            planted="the replay memory holds 200 steps instead of 50,000",
            place="settings",
            algorithm="dqn",
            environment="CartPole-v1",
            settings=DQN,
            broken={"algo.capacity": 200, "algo.warm_up": 200},
            rules=rules("replay_small"),
        ),
        Fault(
            name="epsilon_stuck",
            planted="epsilon stays at 1",
            place="settings",
            algorithm="dqn",
            environment="CartPole-v1",
            settings=DQN,
            broken={"algo.epsilon_end": 1.0},
            rules=rules("epsilon_stuck"),
        ),
        Fault(
            name="gamma_short",
            planted="gamma is 0.5 in episodes of hundreds of steps",
            place="settings",
            algorithm="ppo",
            environment="Acrobot-v1",
            settings={"env-steps": 100_000},
            broken={"algo.gamma": 0.5},
            rules=rules("gamma_short"),
        ),
        Fault(
            name="action_ignored",
            planted="the environment plays action 0, whatever the agent chooses",
            place="environment",
            algorithm="ppo",
            environment="CartPole-v1",
            settings=PPO,
            plant=partial(envs.inside, envs.IgnoredAction),
            rules=rules("actions_ignored"),
            checks=rules("ignored_actions"),
        ),
        Fault(
            name="equal_seeds",
            planted="two ranks have the same seeds and play the same episodes",
            place="algorithm",
            algorithm="ppo",
            environment="CartPole-v1",
            settings={**PPO, "backend": "ranks", "envs": 2, "algo.rollout_steps": 64},
            plant=plants.equal_seeds,
            rules=rules("equal_seeds"),
            ranks=2,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class HealthyRun:
    """Runs that learn, one for each seed."""

    algorithm: str
    environment: str
    settings: Settings = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2, 3)


HEALTHY_RUNS = (
    HealthyRun(algorithm="ppo", environment="CartPole-v1", seeds=(1, 2, 3, 4)),
    HealthyRun(algorithm="ppo", environment="Acrobot-v1"),
    HealthyRun(algorithm="ppo", environment="Pendulum-v1"),
    HealthyRun(algorithm="ppo", environment="rookery/MaskedCartPole-v1"),
    HealthyRun(algorithm="ppo", environment="rookery/GroupedTetris-v0"),
    HealthyRun(algorithm="ppo", environment="planted/Catch-v0", settings=CATCH),
    HealthyRun(algorithm="ppo", environment="rookery/Synthetic-v1", settings=SYNTHETIC),
    HealthyRun(algorithm="vpg", environment="CartPole-v1"),
    HealthyRun(algorithm="vpg", environment="rookery/Synthetic-v1", settings=LEARNABLE),
    HealthyRun(algorithm="dqn", environment="CartPole-v1", seeds=(1, 2, 3, 4)),
    HealthyRun(algorithm="apex", environment="CartPole-v1"),
    HealthyRun(algorithm="r2d2", environment="rookery/Recall-v1"),
)
