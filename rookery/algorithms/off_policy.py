"""Parts of all Q-learning algorithms: TD errors, exploration, target network, acting."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import gymnasium.spaces as gym_spaces
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm, Collection, Spaces, spread
from rookery.algorithms.replay_config import ReplayConfig, build_replay, layout_of
from rookery.data.steps import Batch, Decision, Lanes, Loss, Segment, Steps
from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput
from rookery.memory.distributions import Indices
from rookery.memory.replay import Replay, Transitions
from rookery.memory.returns import n_step, rescale, unrescale
from rookery.networks.build import NetConfig, has_images
from rookery.networks.encoders import legal_actions_of, mask_illegal
from rookery.networks.q import QHeadConfig, QNetwork

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class LadderConfig(ReplayConfig):
    """Settings of algorithms whose environments explore with different epsilons."""

    samples_per_insert: float | None = None
    epsilon_base: float = 0.4
    """Environment i of N explores with probability base^(1 + power i / (N - 1))."""
    epsilon_power: float = 7.0
    """Larger values make the last environment explore less than the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lie in (0, 1]", "epsilon_base")
        self.check("be 0 or more", "epsilon_power")


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


def sequence_td(
    q: Tensor, best_value: Tensor, steps: Steps, gamma: float, n: int, scaled: bool
) -> Tensor:
    """Return n-step TD errors [T, B] of the first T of T + n rows, 0 on masked ones.

    `q` [T, B] are values of the actions taken, `best_value` [T + n, B] values of the best
    actions; both on the scale h if `scaled`.
    """
    sums = n_step(steps.reward, steps.discount, steps.mask, gamma, n)
    count = len(sums.reward)
    later = torch.arange(count, device=q.device).unsqueeze(-1) + sums.last.long()
    value = best_value.gather(0, later)
    if scaled:
        goal = rescale(sums.reward + sums.discount * unrescale(value))
    else:
        goal = sums.reward + sums.discount * value
    return (goal - q) * steps.mask[:count]


def recorded_errors(steps: Steps, starts: Indices, gamma: float, n: int) -> Tensor:
    """Return |TD error| [transitions, B] of n-step transitions from values recorded while acting:
    "q" of the action taken, and "value" of the best."""
    q, value = steps.extra["q"], steps.extra["value"]
    error = sequence_td(q[: len(q) - n], value, steps, gamma, n, scaled=False)
    return error.abs()[torch.from_numpy(starts)]


def rows_of(batch: Batch) -> tuple[Tree, Tree]:
    """Return the observations at both ends of n-step transitions, each [B, ...]."""
    return tree_map(lambda x: x[0], batch.steps.obs), tree_map(lambda x: x[1], batch.steps.obs)


def ladder(lanes: Lanes, base: float, power: float) -> Tensor:
    """Return base^(1 + power i / (N - 1)) for environment i of N (Horgan et al. 2018), [B]."""
    place = torch.arange(lanes.first, lanes.first + lanes.size, dtype=torch.float64)
    return (base ** (1 + power * place / max(1, lanes.total - 1))).float()


class EpsilonDraw(NamedTuple):
    """Random numbers for epsilon-greedy actions."""

    epsilon: Tensor
    """Probability of a random action in each lane, [B]."""
    numbers: Tensor
    """Uniform in [0, 1), [2, B]: whether to explore, and which action to take."""


def epsilon_greedy(q: Tensor, draw: EpsilonDraw | None, legal: Tensor | None = None) -> Tensor:
    """Return the best action for each row of values [B, A], or with probability epsilon any that is
    legal [B, A]; without a draw always the best."""
    best = q.argmax(-1)
    if draw is None:
        return best
    chance, which = draw.numbers.unbind()
    if legal is None:
        any_of = (which * q.shape[-1]).long()
    else:
        before = legal.cumsum(-1)
        wanted = (which * before[:, -1]).long()
        any_of = (before > wanted.unsqueeze(-1)).long().argmax(-1)
    return torch.where(chance < draw.epsilon, any_of, best)


def target_of(network: Network) -> Network:
    """Return a copy of the network that gets no gradient."""
    return copy.deepcopy(network).requires_grad_(False)


class ReplayAlgorithm(Algorithm):
    """Q-learning from n-step transitions in a replay memory, with a target network."""

    off_policy = True
    explores_by = "epsilon"
    config: ReplayConfig
    network: nn.Module
    target: nn.Module
    records = True
    """True if values of actions are stored with them, for first priorities."""

    def __init__(
        self, spaces: Spaces, config: ReplayConfig, net: NetConfig, device: torch.device, rows: int
    ):
        """`rows` are those that an actor collects from each environment at a time."""
        if not isinstance(spaces.action, gym_spaces.Discrete):
            raise BadInput(
                f"algorithm: {type(self).__name__.lower()} needs a Discrete action space, the"
                f" environment has {type(spaces.action).__name__}; use ppo"
            )
        self.spaces = spaces
        self.config = config
        self.device = device
        self.actions, self.start = int(spaces.action.n), int(spaces.action.start)
        self.legality = legal_actions_of(spaces.obs, spaces.action)
        self.network = self.make_network(net).to(device)
        self.target = target_of(self.network)
        # The memory stores single frames, and normalises rows when they are drawn.
        self.collection = Collection(
            rows, newest_frame=spaces.frame_stack > 1, raw=spaces.normalizer is not None
        )

    def make_network(self, net: NetConfig) -> nn.Module:
        """Return the network with new weights."""
        return QNetwork(self.spaces.obs, self.actions, net, QHeadConfig(self.config.dueling))

    def legal(self, obs: Tree) -> Tensor | None:
        """Return which actions [..., A] are legal; None: always all."""
        return None if self.legality is None else self.legality(obs)

    def draw(self, explore: Tensor, generator: torch.Generator | None) -> EpsilonDraw:
        numbers = torch.rand(2, len(explore), generator=generator, device=explore.device)
        return EpsilonDraw(explore, numbers)

    def choose(
        self, obs: Tree, reward: Tensor, state: Tree, draw: Tree | None, explain: bool = False
    ) -> Decision:
        q, after = self.q_values(obs, reward, state)
        legal = self.legal(obs)
        masked = allowed(q, legal)
        action = epsilon_greedy(masked, draw, legal)
        extra = {}
        if explain:
            extra = {"q": q}
        elif self.records:
            extra = {"q": chosen_value(masked, action), "value": masked.amax(-1)}
        env_action = action + self.start if self.start else action
        return Decision(action, env_action, self.state_after(after, action), extra)

    def q_values(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return action values [B, A], and the recurrent core's state after the observation."""
        return self.network(obs), state

    def state_after(self, core: Tree, action: Tensor) -> Tree:
        """Return the state after the actions [B], given that of the recurrent core."""
        return core

    def prepare(self, segment: Segment) -> Segment:
        return segment

    def memory(self, lanes: int, writers: int, seed: int) -> Replay:
        config = self.config
        errors = partial(recorded_errors, gamma=config.gamma, n=config.n_step)
        return build_replay(
            config,
            layout_of(self.spaces, ("q", "value") if self.records else ()),
            Transitions(config.n_step, config.gamma),
            self.collection,
            self.device,
            errors if self.records else None,
            lanes,
            writers,
            seed,
        )

    def statistics(self, batch: Batch) -> Tensor:
        """Return the number of windows."""
        count = batch.steps.mask.shape[1]
        return torch.full((1,), count, dtype=torch.float64, device=self.device)

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        assert batch.weight is not None
        config = self.config
        q, goal = self.values_and_targets(batch)
        scale = 1 / statistics[0].float()
        total = torch.dot(cost(q, goal, config.loss), batch.weight * scale)
        with torch.no_grad():
            error = (goal - q).abs_()
            metrics = {"q_mean": q.sum() * scale, "td_error": error.sum() * scale}
        return Loss(total, metrics, error if config.alpha else None)

    def values_and_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return values of the actions taken, and their targets, one for each row."""
        legal = self.legal(rows_of(batch)[1])
        return transition_td(self.network, self.target, batch, self.config.double, legal)

    def diagnose(self, batch: Batch, sample: Batch, decision: Decision) -> dict[str, Tensor]:
        """Return moments of action values, of their targets and of TD errors."""
        q, (value, target) = decision.extra["q"], self.values_and_targets(sample)
        return spread("target", target) | {
            "q_std": q.std(correction=0),
            "q_min": q.amin(),
            "q_max": q.amax(),
            "td_error_max": (target - value).abs().amax(),
        }

    def after_update(self, updates: int) -> None:
        """Update the target network. A copy is a new module, so that a thread that computes with
        the old one sees no mixture."""
        if self.config.target_tau is not None:
            parameters = zip(self.target.parameters(), self.network.parameters(), strict=True)
            with torch.no_grad():
                for to, parameter in parameters:
                    to.lerp_(parameter, self.config.target_tau)
        elif updates % self.config.target_period == 0:
            self.target = target_of(self.network)

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
    """Actors that explore with different epsilons, from the largest down a ladder to the least, and
    play while the learner learns."""

    asynchronous = True
    config: LadderConfig

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        epsilon = ladder(lanes, self.config.epsilon_base, self.config.epsilon_power)
        return epsilon.to(self.device)
