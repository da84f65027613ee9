"""What Q-learning algorithms share: settings, TD errors, target network, acting."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm, OptimizerConfig, Spaces
from rookery.algorithms.exploration import EpsilonDraw, draw_epsilon, epsilon_greedy, ladder
from rookery.data.steps import Batch, Decision, Lanes, Loss, Segment
from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput, require
from rookery.memory import budget
from rookery.memory.replay import Columns
from rookery.memory.returns import n_step
from rookery.memory.sum_tree import Floats, Indices
from rookery.networks.action_masks import LegalActions, legal_actions_of, mask_illegal
from rookery.networks.images import has_images


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(OptimizerConfig):
    """Settings of every algorithm with a replay memory."""

    learning_rate: float = 1e-4
    """Size of a step at the start."""
    anneal: bool = False
    """True: the learning rate falls linearly to zero over the run."""
    epsilon: float = 1.5e-4
    """Added to the denominator of adam and rmsprop."""
    max_grad_norm: float = 40.0
    """The gradient is scaled down to this norm; 0: never."""
    gamma: float = 0.99
    """Discount per agent step."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    batch_size: int = 32
    """Windows in an update."""
    capacity: int | str = 1_000_000
    """Size of the memory over all environments: rows, or bytes such as 8GB."""
    warm_up: int = 20_000
    """Rows stored over all environments before learning starts."""
    samples_per_insert: float | None = 8.0
    """How often each stored step is learned from on average; none: no limit."""
    alpha: float = 0.6
    """Exponent of priorities in sampling (Schaul et al. 2016); 0: uniform sampling."""
    beta: float = 0.4
    """Exponent of importance weights: 0 no correction, 1 full correction."""
    beta_end: float | None = None
    """Value that beta rises to linearly over the run; none: constant."""
    double: bool = True
    """True: double Q-learning, the online network chooses the action of the target value."""
    dueling: bool = True
    """True: value and advantages have separate output streams (Wang et al. 2016)."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of a TD error."""
    target_period: int = 2_500
    """Updates between copies of the network into its target, if target_tau is none."""
    target_tau: float | None = None
    """Share of the network mixed into its target with every update; none: copies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.gamma <= 1, f"algo.gamma must lie in (0, 1], got {self.gamma}")
        for name in ("n_step", "batch_size", "target_period"):
            value = getattr(self, name)
            require(value >= 1, f"algo.{name} must be at least 1, got {value}")
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"algo.{name} must lie in [0, 1], got {value}")
        end = self.beta_end
        require(
            end is None or self.beta <= end <= 1,
            f"algo.beta_end must lie between algo.beta={self.beta} and 1, got {end}",
        )
        tau, ratio = self.target_tau, self.samples_per_insert
        require(tau is None or 0 < tau <= 1, f"algo.target_tau must lie in (0, 1], got {tau}")
        require(
            ratio is None or ratio > 0, f"algo.samples_per_insert must be positive, got {ratio}"
        )
        require(self.warm_up >= 0, f"algo.warm_up must be 0 or more, got {self.warm_up}")
        budget.check_capacity(self.capacity)


@dataclass(frozen=True, kw_only=True)
class LadderConfig(ReplayConfig):
    """Settings of algorithms whose environments explore with different epsilons."""

    samples_per_insert: float | None = None
    """How often each stored step is learned from on average; none: no limit."""
    epsilon_base: float = 0.4
    """Environment i of N explores with probability base^(1 + power i / (N - 1))."""
    epsilon_power: float = 7.0
    """How much less the last environment explores than the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        base, power = self.epsilon_base, self.epsilon_power
        require(0 < base <= 1, f"algo.epsilon_base must lie in (0, 1], got {base}")
        require(power >= 0, f"algo.epsilon_power must be 0 or more, got {power}")


# ---------------------------------------------------------------- pure functions


def chosen_value(q: Tensor, action: Tensor) -> Tensor:
    """Return the values [...] of the actions taken, out of q [..., A]."""
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def cost(value: Tensor, goal: Tensor, loss: str) -> Tensor:
    """Return the Huber loss of TD errors, quadratic up to 1, or half their squares; any shape."""
    if loss == "huber":
        return F.huber_loss(value, goal, reduction="none")
    return 0.5 * (goal - value).square()


def allowed(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return values [..., A] with illegal actions at minus infinity."""
    return mask_illegal(q, legal, -math.inf)


def transition_td(
    network: nn.Module, target: nn.Module, batch: Batch, double: bool, legal: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return values [B] of the actions taken in n-step transitions, and their targets [B], given
    the actions that are legal at their ends [B, A]."""
    steps = batch.steps
    now, later = rows_of(batch)
    q = chosen_value(network(now), steps.action[0])
    with torch.no_grad():
        known = steps.extra.get("target_q")
        target_q = target(later) if known is None else known[0]
        best = allowed(network(later), legal).argmax(-1) if double else None
        value = allowed(target_q, legal).amax(-1) if best is None else chosen_value(target_q, best)
        goal = torch.addcmul(steps.reward[0], steps.discount[0], value)
    return q, goal


def transition_loss(
    network: nn.Module,
    target: nn.Module,
    batch: Batch,
    count: Tensor,
    config: ReplayConfig,
    legal: Tensor | None = None,
) -> Loss:
    """Return the loss of n-step transitions, divided by their `count` in the whole batch, given the
    actions that are legal at their ends [B, A]."""
    assert batch.weight is not None
    q, goal = transition_td(network, target, batch, config.double, legal)
    scale = 1 / count.float()
    total = torch.dot(cost(q, goal, config.loss), batch.weight * scale)
    with torch.no_grad():
        error = (goal - q).abs_()
        metrics = {"q_mean": q.sum() * scale, "td_error": error.sum() * scale}
    return Loss(total, metrics, error if config.alpha else None)


def rows_of(batch: Batch) -> tuple[Tree, Tree]:
    """Return the observations at both ends of n-step transitions, each [B, ...]."""
    return tree_map(lambda x: x[0], batch.steps.obs), tree_map(lambda x: x[1], batch.steps.obs)


def recorded_values(q: Tensor, action: Tensor) -> dict[str, Tensor]:
    """Return what first priorities are computed from: values of the action taken and the best."""
    return {"q": chosen_value(q, action), "value": q.amax(-1)}


def recorded_errors(columns: Columns, starts: Indices, gamma: float, n: int) -> Floats:
    """Return |TD error| [transitions, B] of n-step transitions from values recorded while acting:
    "q" of the action taken, and "value" of the best."""
    sums = n_step(columns.reward, columns.discount, columns.mask, gamma, n)
    count = len(sums.reward)
    later = np.arange(count)[:, None] + sums.last.astype(np.int64)
    value = np.take_along_axis(columns.extra["value"], later, axis=0)
    return np.abs(sums.reward + sums.discount * value - columns.extra["q"][:count])[starts]


# ---------------------------------------------------------------- target network


Network = TypeVar("Network", bound=nn.Module)


def target_of(network: Network) -> Network:
    """Return a copy of the network that gets no gradient."""
    return copy.deepcopy(network).requires_grad_(False)


def followed(target: Network, network: Network, updates: int, config: ReplayConfig) -> Network:
    """Return the target network after update number `updates`.

    A copy is a new module, so that a thread that computes with the old one sees no mixture.
    """
    if config.target_tau is not None:
        with torch.no_grad():
            for to, parameter in zip(target.parameters(), network.parameters(), strict=True):
                to.lerp_(parameter, config.target_tau)
    elif updates % config.target_period == 0:
        return target_of(network)
    return target


class ReplayAlgorithm(Algorithm):
    """Base class of Q-learning with a replay memory and a target network."""

    off_policy = True
    explores_by = "epsilon"
    config: ReplayConfig
    spaces: Spaces
    target: nn.Module
    start: int
    """The environment's number of the first action."""
    records = True
    """True if values of actions are stored with them, for first priorities."""

    @cached_property
    def legality(self) -> LegalActions | None:
        """Computes the legal actions from observations, if they have an action mask."""
        return legal_actions_of(self.spaces.obs, self.spaces.action)

    def legal(self, obs: Tree) -> Tensor | None:
        """Return which actions [..., A] are legal; None: always all."""
        return None if self.legality is None else self.legality(obs)

    def draw(self, explore: Tensor, generator: torch.Generator | None) -> EpsilonDraw:
        return draw_epsilon(explore, generator)

    def choose(
        self, obs: Tree, reward: Tensor, state: Tree, draw: Tree | None, explain: bool = False
    ) -> Decision:
        q, after = self.q_values(obs, reward, state)
        legal = self.legal(obs)
        masked = allowed(q, legal)
        action = epsilon_greedy(masked, draw, legal)
        extra = recorded_values(masked, action) if self.records else {}
        env_action = action + self.start if self.start else action
        return Decision(
            action, env_action, self.state_after(after, action), {"q": q} if explain else extra
        )

    @abstractmethod
    def q_values(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return action values [B, A], and the recurrent core's state after the observation."""

    def state_after(self, core: Tree, action: Tensor) -> Tree:
        """Return the state after the actions [B], given that of the recurrent core."""
        return core

    def prepare(self, segment: Segment) -> Segment:
        return segment

    def statistics(self, batch: Batch) -> Tensor:
        """Return the number of windows."""
        count = batch.steps.mask.shape[1]
        return torch.full((1,), count, dtype=torch.float64, device=self.device)

    def after_update(self, updates: int) -> None:
        self.target = followed(self.target, self.network, updates, self.config)

    @torch.no_grad()
    def precompute_targets(self, batch: Batch, coming: range | None = None) -> Batch:
        """Add the target network's values, unless the target changes with every update.

        Small networks compute them faster within the update, so only images are worth it where the
        learner itself has to wait.
        """
        if self.config.target_tau is not None:
            return batch
        period = self.config.target_period
        if coming is not None:
            changes = coming[0] // period != coming[-1] // period
            if changes or not has_images(self.spaces.obs):
                return batch
        known = self.traced_target_values(batch)
        extra = batch.steps.extra | {"target_q": known}
        return batch._replace(steps=batch.steps._replace(extra=extra))

    @cached_property
    def traced_target_values(self) -> Callable[[Batch], Tensor]:
        """`target_values`, traced where that is faster."""
        return self.traced("target values", self.target_values, lambda: [self.target])

    def target_values(self, batch: Batch) -> Tensor:
        """Return the target network's values at the ends of the transitions, [T, B, A]."""
        return self.target(rows_of(batch)[1]).unsqueeze(0)

    def saved(self) -> dict[str, nn.Module]:
        return {"target": self.target}


class LadderAlgorithm(ReplayAlgorithm):
    """Actors that explore with different epsilons and play while the learner learns."""

    asynchronous = True
    config: LadderConfig

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        epsilon = ladder(lanes, self.config.epsilon_base, self.config.epsilon_power)
        return epsilon.to(self.device)


def count_actions(name: str, space: spaces.Space) -> int:
    """Return the number of actions; BadInput unless the space is Discrete."""
    if not isinstance(space, spaces.Discrete):
        raise BadInput(
            f"algorithm: {name} needs a Discrete action space, the environment has"
            f" {type(space).__name__}; use ppo"
        )
    return int(space.n)
