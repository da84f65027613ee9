"""What the algorithms that learn action values from a replay memory have in common."""

from __future__ import annotations

import copy
import math
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
from rookery.algorithms.exploration import draw_for, epsilon_greedy, ladder
from rookery.data.steps import Batch, Decision, Lanes, Loss, Segment
from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput, require
from rookery.memory import budget
from rookery.memory.replay import Columns
from rookery.memory.returns import n_step
from rookery.memory.sum_tree import Floats, Indices
from rookery.networks.action_masks import Legality, legality, restricted
from rookery.networks.images import has_images


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(OptimizerConfig):
    """Settings of every algorithm with a replay memory."""

    learning_rate: float = 1e-4
    """Size of a step at the start."""
    anneal: bool = False
    """Whether the learning rate falls linearly to zero over the run."""
    epsilon: float = 1.5e-4
    """Added to the denominator of adam and rmsprop."""
    max_grad_norm: float = 40.0
    """The gradient is scaled down to this norm; 0: never."""
    gamma: float = 0.99
    """Discount per agent step."""
    n_step: int = 3
    """Steps whose rewards are summed before a value is trusted."""
    batch_size: int = 32
    """Windows in an update."""
    capacity: int | str = 1_000_000
    """What the memory holds over all environments: rows, or bytes such as 8GB."""
    warm_up: int = 20_000
    """Rows stored over all environments before learning starts."""
    samples_per_insert: float | None = 8.0
    """How often each stored step is learned from on average; none: as often as it happens."""
    alpha: float = 0.6
    """Windows are drawn in proportion to their priority to this power; 0: evenly."""
    beta: float = 0.4
    """How far importance weights correct for that: 0 not at all, 1 in full."""
    beta_end: float | None = None
    """What beta rises to linearly over the run; none: it stays."""
    double: bool = True
    """Whether the learned network chooses the action that the target network values."""
    dueling: bool = True
    """Whether value and advantages have outputs of their own."""
    loss: Literal["huber", "mse"] = "huber"
    """Cost of an error."""
    target_period: int = 2_500
    """Updates between copies of the network to its target, if target_tau is none."""
    target_tau: float | None = None
    """Share of the network that flows into its target with every update; none: copies."""

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
    """Settings of those whose environments explore to different degrees."""

    samples_per_insert: float | None = None
    """How often each stored step is learned from on average; none: as often as it happens."""
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
    """Values [...] of the actions taken, out of q [..., A]."""
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def cost(value: Tensor, goal: Tensor, loss: str) -> Tensor:
    """Huber's cost of TD errors, quadratic up to 1, or the quadratic one; any shape."""
    if loss == "huber":
        return F.huber_loss(value, goal, reduction="none")
    return 0.5 * (goal - value).square()


def allowed(q: Tensor, legal: Tensor | None) -> Tensor:
    """Values [..., A] as actions are chosen by them: illegal ones are never best."""
    return restricted(q, legal, -math.inf)


def transition_td(
    network: nn.Module, target: nn.Module, batch: Batch, double: bool, legal: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values [B] of the actions taken in n-step transitions, and what they should be [B], given
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
    """The loss of n-step transitions, over the whole batch's count of them, given the actions
    that are legal at their ends [B, A]."""
    assert batch.weight is not None
    q, goal = transition_td(network, target, batch, config.double, legal)
    scale = 1 / count.float()
    total = torch.dot(cost(q, goal, config.loss), batch.weight * scale)
    with torch.no_grad():
        error = (goal - q).abs_()
        metrics = {"q_mean": q.sum() * scale, "td_error": error.sum() * scale}
    return Loss(total, metrics, error if config.alpha else None)


def rows_of(batch: Batch) -> tuple[Tree, Tree]:
    """The observations at both ends of n-step transitions, each [B, ...]."""
    return tree_map(lambda x: x[0], batch.steps.obs), tree_map(lambda x: x[1], batch.steps.obs)


def recorded_values(q: Tensor, action: Tensor) -> dict[str, Tensor]:
    """What first priorities need to know of the values [B, A] and the actions taken [B]."""
    return {"q": chosen_value(q, action), "value": q.amax(-1)}


def recorded_errors(columns: Columns, starts: Indices, gamma: float, n: int) -> Floats:
    """|TD error| of n-step transitions from what was recorded while acting: the value of the
    action taken, "q", and that of the best, "value"; [transitions, B]."""
    sums = n_step(columns.reward, columns.discount, columns.mask, gamma, n)
    count = len(sums.reward)
    later = np.arange(count)[:, None] + sums.last.astype(np.int64)
    value = np.take_along_axis(columns.extra["value"], later, axis=0)
    return np.abs(sums.reward + sums.discount * value - columns.extra["q"][:count])[starts]


# ---------------------------------------------------------------- target network


Network = TypeVar("Network", bound=nn.Module)


def target_of(network: Network) -> Network:
    """A copy of the network that gets no gradient."""
    return copy.deepcopy(network).requires_grad_(False)


def followed(target: Network, network: Network, updates: int, config: ReplayConfig) -> Network:
    """The target network brought up to date, as the settings say.

    A copy is a new module: whoever computes with the old one meanwhile never sees a mixture.
    """
    if config.target_tau is not None:
        with torch.no_grad():
            for to, parameter in zip(target.parameters(), network.parameters(), strict=True):
                to.lerp_(parameter, config.target_tau)
    elif updates % config.target_period == 0:
        return target_of(network)
    return target


class ReplayAlgorithm(Algorithm):
    """What follows from having a target network."""

    off_policy = True
    explores_by = "epsilon"
    config: ReplayConfig
    spaces: Spaces
    target: nn.Module
    start: int
    """The environment's word for the first action."""
    records = True
    """Whether the values of actions are kept with them, for first priorities."""

    @cached_property
    def legality(self) -> Legality | None:
        """What tells the legal actions, if observations do."""
        return legality(self.spaces.obs, self.spaces.action)

    def legal(self, obs: Tree) -> Tensor | None:
        """The actions [..., A] that may be taken; None: all of them, always."""
        return None if self.legality is None else self.legality(obs)

    @cached_property
    def decided(self) -> Callable[..., Decision]:
        """`choose`, traced where that pays."""
        return self.traced("acting", self.choose, lambda: [self.network])

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        return self.decided(obs, reward, state, draw_for(explore, generator), explore)

    def choose(
        self, obs: Tree, reward: Tensor, state: Tree, draw: Tensor | None, explore: Tensor | None
    ) -> Decision:
        """What `act` decides, given the random numbers for it."""
        q, after = self.judge(obs, reward, state)
        legal = self.legal(obs)
        q = allowed(q, legal)
        action = epsilon_greedy(q, explore, draw, legal)
        extra = recorded_values(q, action) if self.records else {}
        return Decision(action, self.named(action), self.carried(after, action), extra)

    def best(self, obs: Tree, reward: Tensor, state: Tree) -> Decision:
        """Of a network whose noise, if it has any, is quiet."""
        q, after = self.judge(obs, reward, state)
        action = allowed(q, self.legal(obs)).argmax(-1)
        return Decision(action, self.named(action), self.carried(after, action), {"q": q})

    def named(self, action: Tensor) -> Tensor:
        """Actions as the environment calls them."""
        return action + self.start if self.start else action

    def judge(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Action values [B, A], and the recurrent core's state after the observation."""
        raise NotImplementedError

    def carried(self, core: Tree, action: Tensor) -> Tree:
        """The state to go on with after the actions [B]."""
        return core

    def prepare(self, segment: Segment) -> Segment:
        return segment

    def statistics(self, batch: Batch) -> Tensor:
        """How many windows there are."""
        count = batch.steps.mask.shape[1]
        return torch.full((1,), count, dtype=torch.float64, device=self.device)

    def after_update(self, updates: int) -> None:
        self.target = followed(self.target, self.network, updates, self.config)

    @torch.no_grad()
    def ahead(self, batch: Batch) -> Batch:
        """With the target network's values, unless it changes with every update."""
        if self.config.target_tau is not None:
            return batch
        known = self.valued(batch)
        extra = batch.steps.extra | {"target_q": known}
        return batch._replace(steps=batch.steps._replace(extra=extra))

    def settled(self, done: int, coming: int) -> bool:
        period = self.config.target_period
        same = done // period == (done + coming - 1) // period
        # Small networks are sooner asked within the update.
        return same and has_images(self.spaces.obs)

    @cached_property
    def valued(self) -> Callable[[Batch], Tensor]:
        """`target_values`, traced where that pays."""
        return self.traced("target values", self.target_values, lambda: [self.target])

    def target_values(self, batch: Batch) -> Tensor:
        """The target network's values where they are needed, [T, B, A]."""
        return self.target(rows_of(batch)[1]).unsqueeze(0)

    def saved(self) -> dict[str, nn.Module]:
        return {"target": self.target}


class LadderAlgorithm(ReplayAlgorithm):
    """Actors that explore to different degrees and may play while the learner learns."""

    asynchronous = True
    config: LadderConfig

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        epsilon = ladder(lanes, self.config.epsilon_base, self.config.epsilon_power)
        return epsilon.to(self.device)


def count_actions(name: str, space: spaces.Space) -> int:
    """How many actions there are; only Discrete spaces have action values."""
    if not isinstance(space, spaces.Discrete):
        raise BadInput(
            f"algorithm: {name} needs a Discrete action space, the environment has"
            f" {type(space).__name__}; use ppo"
        )
    return int(space.n)
