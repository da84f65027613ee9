"""Vanilla policy gradient: REINFORCE with reward-to-go and a baseline (Williams 1992)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rookery.algorithms.base import Collection, OptimizerConfig, Spaces, register
from rookery.algorithms.on_policy import PolicyAlgorithm, standardise, values
from rookery.data.steps import Batch, Loss, Segment
from rookery.errors import require
from rookery.memory.returns import reward_to_go
from rookery.memory.rollout import Rollout
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig
from rookery.networks.recurrent import resets


@dataclass(frozen=True, kw_only=True)
class VPGConfig(OptimizerConfig):
    """Settings of the vanilla policy gradient."""

    gamma: float = 0.99
    """Discount per agent step."""
    episodes: int | None = 16
    """Whole episodes per batch, divided over the environments; none: use rollout_steps."""
    rollout_steps: int | None = None
    """Rows per batch from each environment; unfinished episodes bootstrap from the baseline."""
    minibatches: int = 1
    """Updates per batch, each on its own part of it."""
    baseline: Literal["learned", "mean"] = "learned"
    """Subtracted from the return: a learned value, or the batch's mean return."""
    normalize_advantage: bool = True
    """True: advantages are divided by their deviation in each minibatch."""
    point_ends_return: bool = False
    """True: a reward other than 0 ends the return, as in Pong, where each point is a game."""
    value_coef: float = 0.5
    """Weight of the learned baseline's loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lie in (0, 1]", "gamma")
        self.check("be at least 1", "episodes", "rollout_steps", "minibatches")
        self.check("be 0 or more", "value_coef", "entropy_coef")
        require(
            (self.episodes is None) != (self.rollout_steps is None),
            "algo.episodes and algo.rollout_steps: give one of them and set the other to none,"
            f" got {self.episodes} and {self.rollout_steps}",
        )
        require(
            self.baseline == "learned" or self.rollout_steps is None,
            "algo.baseline=mean needs whole episodes; set algo.episodes instead of"
            f" algo.rollout_steps={self.rollout_steps}",
        )


@register("vpg")
class VPG(PolicyAlgorithm):
    """Reward-to-go minus a baseline, one pass over each batch."""

    Config = VPGConfig
    config: VPGConfig

    def __init__(self, spaces: Spaces, config: VPGConfig, net: NetConfig, device: torch.device):
        self.config = config
        self.device = device
        learned = config.baseline == "learned"
        self.network = ActorCritic(spaces.obs, spaces.action, net, critic=learned)
        self.collection = Collection(config.rollout_steps, config.episodes)

    @torch.no_grad()
    def prepare(self, segment: Segment) -> Segment:
        steps, config = segment.steps, self.config
        value = values(self.network, segment)
        discount = steps.discount
        if config.point_ends_return:
            discount = discount * (steps.reward == 0)
        total = reward_to_go(steps.reward, discount, steps.mask, value, config.gamma)
        extra = {"return": total, "advantage": total - value[:-1]}
        return segment._replace(steps=steps._replace(extra=extra))

    def memory(self, lanes: int, writers: int, seed: int) -> Rollout:
        config, recurrent = self.config, self.network.recurrent
        require(
            not recurrent or config.minibatches <= lanes,
            f"algo.minibatches={config.minibatches} is more than the {lanes} environments to share"
            " out; lower it or raise --envs",
        )
        return Rollout(1, config.minibatches, recurrent, self.device, seed)

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        steps, config = batch.steps, self.config
        scale = steps.mask / statistics[0].clamp(min=1)
        advantage = standardise(
            steps.extra["advantage"],
            statistics,
            centre=config.normalize_advantage or config.baseline == "mean",
            scale=config.normalize_advantage,
        )
        reset = resets(steps.mask) if self.network.recurrent else None
        params, value = self.network(steps.obs, batch.state, reset)
        log_prob, entropies = self.network.head.log_prob_and_entropy(params, steps.action)
        gain = (log_prob * advantage * scale).sum()
        entropy = (entropies * scale).sum()
        total = -gain - config.entropy_coef * entropy
        metrics = {"policy_loss": -gain.detach(), "entropy": entropy.detach()}
        if config.baseline == "learned":
            error = (0.5 * (value - steps.extra["return"]).square() * scale).sum()
            total = total + config.value_coef * error
            metrics["value_loss"] = error.detach()
        return Loss(total, metrics)
