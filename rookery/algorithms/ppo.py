"""Proximal policy optimisation (Schulman et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rookery.algorithms.base import Collection, OptimizerConfig, Spaces, register
from rookery.algorithms.on_policy import PolicyAlgorithm, standardise, values
from rookery.data.steps import Batch, Loss, Segment
from rookery.data.tree import flatten_time
from rookery.errors import require
from rookery.memory.returns import gae
from rookery.memory.rollout import Rollout
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig
from rookery.networks.recurrent import resets


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OptimizerConfig):
    """Settings of PPO."""

    gamma: float = 0.99
    """Discount per agent step."""
    lam: float = 0.95
    """Lambda of the generalised advantage estimate (Schulman et al. 2016)."""
    rollout_steps: int = 128
    """Rows collected from each environment between updates."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Updates per pass."""
    clip: float = 0.2
    """The probability ratio is clipped to 1 - clip and 1 + clip."""
    normalize_advantage: bool = True
    """True: advantages are scaled to mean 0 and deviation 1 in each minibatch."""
    value_clip: float | None = None
    """The change of the value is clipped to this; none: not clipped."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    max_kl: float | None = None
    """Updates on a rollout stop when the KL divergence exceeds this; none: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lie in (0, 1]", "gamma")
        self.check("lie in [0, 1]", "lam")
        self.check("be positive", "clip", "value_clip", "max_kl")
        self.check("be at least 1", "rollout_steps", "epochs", "minibatches")
        self.check("be 0 or more", "value_coef", "entropy_coef")


def clipped_objective(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return the clipped surrogate min(r A, clip(r) A), to be maximised; any shape.

    Where the clipped term is less than the other it does not depend on the ratio, so that it needs
    no gradient; where they are equal, they have the same.
    """
    free = ratio * advantage
    with torch.no_grad():
        held = ratio.clamp(1 - clip, 1 + clip) * advantage
        moves = free <= held
    return torch.where(moves, free, held)


def value_error(value: Tensor, old: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error of the value or the clipped value, the larger; any shape."""
    error = F.mse_loss(value, target, reduction="none")
    if clip is not None:
        near = old + (value - old).clamp(-clip, clip)
        error = torch.max(error, (near - target).square())
    return 0.5 * error


@register("ppo")
class PPO(PolicyAlgorithm):
    """Clipped objective, GAE, a value beside the policy, recurrent or not."""

    Config = PPOConfig
    config: PPOConfig

    def __init__(self, spaces: Spaces, config: PPOConfig, net: NetConfig, device: torch.device):
        self.config = config
        self.device = device
        self.network = ActorCritic(spaces.obs, spaces.action, net)
        self.collection = Collection(steps=config.rollout_steps)

    @torch.no_grad()
    def prepare(self, segment: Segment) -> Segment:
        steps, config = segment.steps, self.config
        value = values(self.network, segment)
        advantage = gae(steps.reward, steps.discount, steps.mask, value, config.gamma, config.lam)
        extra = {
            "log_prob": self.network.head.log_prob(steps.extra["params"], steps.action),
            "value": value[:-1],
            "advantage": advantage,
        }
        return segment._replace(steps=steps._replace(extra=extra))

    def memory(self, lanes: int, writers: int, seed: int) -> Rollout:
        config, recurrent = self.config, self.network.recurrent
        rows = lanes if recurrent else lanes * config.rollout_steps
        unit = "environments" if recurrent else "rows of a rollout"
        require(
            config.minibatches <= rows,
            f"algo.minibatches={config.minibatches} is more than the {rows} {unit} to share out;"
            " lower it or raise --envs",
        )
        return Rollout(config.epochs, config.minibatches, recurrent, self.device, seed)

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        config, rows = self.config, flatten_time(batch.steps._replace(obs=()))
        scale = rows.mask / statistics[0].clamp(min=1)
        advantage = rows.extra["advantage"]
        if config.normalize_advantage:
            advantage = standardise(advantage, statistics)
        params, value = self.evaluate(batch)
        log_prob, entropies = self.network.head.log_prob_and_entropy(params, rows.action)
        log_ratio = log_prob - rows.extra["log_prob"]
        ratio = log_ratio.exp()
        gain = torch.dot(clipped_objective(ratio, advantage, config.clip), scale)
        old = rows.extra["value"]
        target = old + rows.extra["advantage"]
        error = torch.dot(value_error(value, old, target, config.value_clip), scale)
        entropy = torch.dot(entropies, scale)
        total = config.value_coef * error - gain
        if config.entropy_coef:
            total = total - config.entropy_coef * entropy
        with torch.no_grad():
            change = ratio - 1
            metrics = {
                "policy_loss": -gain,
                "value_loss": error,
                "entropy": entropy,
                "kl": torch.dot(change - log_ratio, scale),
                "clip_fraction": torch.dot((change.abs() > config.clip).float(), scale),
            }
        return Loss(total, metrics)

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return distribution parameters [N, P] and values [N] of a batch's N rows."""
        steps = batch.steps
        if not self.network.recurrent:
            return self.network(flatten_time(steps.obs), ())
        params, value = self.network(steps.obs, batch.state, resets(steps.mask))
        return params.flatten(0, 1), value.flatten()

    @property
    def may_stop(self) -> bool:
        return self.config.max_kl is not None

    def stop(self, metrics: dict[str, float]) -> bool:
        return self.config.max_kl is not None and metrics["kl"] > self.config.max_kl
