"""The table of planted faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from planted import environments as envs
from planted import plants, runs
from planted.runs import RunSettings, Settings


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, the run that it is planted in, and the findings that name it."""

    name: str
    planted: str
    """The planted change, in one sentence."""
    place: Literal["environment", "algorithm", "network", "settings"]
    run: RunSettings
    """The healthy run."""
    settings: Settings = field(default_factory=dict)
    """Settings of the broken run that differ."""
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

    @property
    def broken_run(self) -> RunSettings:
        """The run with the fault's settings."""
        return self.run.with_settings(self.settings)


def names(*given: str) -> frozenset[str]:
    return frozenset(given)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            name="termination_as_truncation",
            planted="values bootstrap from the last observation of a terminated episode",
            place="algorithm",
            run=runs.PPO,
            plant=plants.termination_as_truncation,
            rules=names("values_off_scale"),
            probes=frozenset({1}),
        ),
        Fault(
            name="truncation_as_termination",
            planted="values do not bootstrap from the last observation of a truncated episode",
            place="algorithm",
            run=runs.PATIENCE,
            plant=plants.truncation_as_termination,
            probes=frozenset({8}),
        ),
        Fault(
            name="target_never_updated",
            planted="the target network keeps its first weights",
            place="algorithm",
            run=runs.DQN,
            plant=plants.target_never_updated,
            rules=names("target_never_moves"),
        ),
        Fault(
            name="loss_detached",
            planted="the policy's loss has no gradient",
            place="algorithm",
            run=runs.PPO,
            plant=plants.policy_loss_detached,
            rules=names("zero_gradient", "layer_without_gradient", "frozen_weights"),
        ),
        Fault(
            name="learning_rate_high",
            planted="the learning rate is 100 times too large",
            place="settings",
            run=runs.PPO,
            settings={"algo.learning_rate": 0.2},
            rules=names("learning_rate_high"),
        ),
        Fault(
            name="learning_rate_low",
            planted="the learning rate is 100 times too small",
            place="settings",
            run=runs.PPO,
            settings={"algo.learning_rate": 2e-5},
            rules=names("learning_rate_low"),
        ),
        Fault(
            name="dead_units",
            planted="biases of -10 keep every ReLU at 0",
            place="network",
            run=runs.DQN,
            plant=plants.dead_units,
            rules=names("dead_units"),
        ),
        Fault(
            name="pixels_not_scaled",
            planted="the network gets pixels of 0 to 255",
            place="network",
            run=runs.CATCH,
            plant=plants.pixels_not_scaled,
            rules=names("obs_unscaled"),
        ),
        Fault(
            name="wrong_statistics",
            planted="observations are divided by 1,000 times their deviation",
            place="environment",
            run=runs.PPO.with_settings({"env.normalize_obs": True}),
            plant=plants.wrong_statistics,
            rules=names("obs_statistics"),
        ),
        Fault(
            name="stale_actors",
            planted="actors on threads play with the first weights for ever",
            place="algorithm",
            run=runs.APEX,
            plant=plants.stale_actors,
            rules=names("stale_actors"),
        ),
        Fault(
            name="importance_weights_dropped",
            planted="prioritized windows all have the weight 1",
            place="algorithm",
            run=runs.LOTTERY,
            plant=plants.no_importance_weights,
            rules=names("importance_weights_dropped"),
        ),
        Fault(
            name="reward_sign",
            planted="the learner gets rewards with the wrong sign",
            place="algorithm",
            run=runs.PPO,
            plant=partial(envs.outside, partial(envs.ScaledReward, factor=-1.0)),
            rules=names("reward_sign"),
        ),
        Fault(
            name="reward_delayed",
            planted="each reward comes one step late",
            place="environment",
            run=runs.CODES,
            plant=partial(envs.inside, envs.LateReward),
            checks=names("late_reward"),
        ),
        Fault(
            name="observation_delayed",
            planted="each observation comes one step late",
            place="environment",
            run=runs.CODES,
            plant=partial(envs.inside, envs.LateObservation),
            checks=names("late_observation"),
        ),
        Fault(
            name="entropy_coefficient",
            planted="the entropy bonus is 100 times too large",
            place="settings",
            run=runs.PPO.with_settings({"algo.entropy_coef": 0.02}),
            settings={"algo.entropy_coef": 2.0},
            rules=names("entropy_stuck"),
        ),
        Fault(
            name="frozen_layer",
            planted="the policy's last layer gets no gradient",
            place="network",
            run=runs.PPO,
            plant=plants.frozen_head,
            rules=names("frozen_weights", "layer_without_gradient"),
        ),
        Fault(
            name="advantage_scale",
            planted="rewards are 1,000 times larger and advantages are not normalised",
            place="environment",
            run=runs.PPO,
            settings={"algo.normalize_advantage": False},
            plant=partial(envs.inside, partial(envs.ScaledReward, factor=1000.0)),
            rules=names("advantage_scale"),
            unit=1000.0,
        ),
        Fault(
            name="replay_small",
            planted="the replay memory holds 64 steps instead of 50,000",
            place="settings",
            run=runs.DQN,
            settings={"algo.capacity": 64, "algo.warm_up": 64},
            rules=names("replay_small"),
        ),
        Fault(
            name="epsilon_stuck",
            planted="epsilon stays at 1",
            place="settings",
            run=runs.DQN,
            settings={"algo.epsilon_end": 1.0},
            rules=names("epsilon_stuck"),
        ),
        Fault(
            name="gamma_short",
            planted="gamma is 0.5 in episodes of hundreds of steps",
            place="settings",
            run=runs.ACROBOT,
            settings={"algo.gamma": 0.5},
            rules=names("gamma_short"),
        ),
        Fault(
            name="action_ignored",
            planted="the environment plays action 0, whatever the agent chooses",
            place="environment",
            run=runs.PPO,
            plant=partial(envs.inside, envs.IgnoredAction),
            checks=names("ignored_actions"),
        ),
        Fault(
            name="equal_seeds",
            planted="two ranks have the same seeds and play the same episodes",
            place="algorithm",
            run=runs.RANKS,
            plant=plants.equal_seeds,
            rules=names("equal_seeds"),
        ),
    )
}
