"""Deep Q-learning (Mnih et al. 2015) with the improvements that make up Rainbow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rookery.algorithms.base import Spaces, register
from rookery.algorithms.off_policy import ReplayAlgorithm, allowed, chosen_value, rows_of
from rookery.algorithms.replay_config import ReplayConfig
from rookery.data.steps import Batch, Decision, Lanes, Loss
from rookery.data.tree import Tree
from rookery.errors import require
from rookery.networks.build import NetConfig
from rookery.networks.encoders import NoisyLinear
from rookery.networks.q import QHeadConfig, QNetwork, expected_value, project_onto_atoms


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN."""

    alpha: float = 0.0
    dueling: bool = False
    n_step: int = 1
    rollout_steps: int = 1
    """Rows collected from each environment between updates."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.05
    """Probability of a random action at the end."""
    epsilon_steps: int = 100_000
    """Agent steps over which epsilon falls."""
    atoms: int = 1
    """Atoms of the value distribution (C51, Bellemare et al. 2017); 1: plain values."""
    value_min: float = -10.0
    """The lowest atom."""
    value_max: float = 10.0
    """The highest atom."""
    noisy: bool = False
    """True: explore by noise in the weights (Fortunato et al. 2018), not by random actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lie in [0, 1]", "epsilon_start", "epsilon_end")
        self.check("be 0 or more", "epsilon_steps")
        self.check("be at least 1", "atoms", "rollout_steps")
        require(
            self.value_min < self.value_max,
            f"algo.value_min={self.value_min} must be less than algo.value_max={self.value_max}",
        )


def linear_epsilon(env_steps: int, start: float, end: float, steps: int) -> float:
    """Return epsilon, which falls from `start` to `end` over the first `steps` steps."""
    done = min(1.0, env_steps / steps) if steps else 1.0
    return start + done * (end - start)


@register("dqn")
class DQN(ReplayAlgorithm):
    """Q-learning from a replay memory; optionally double, dueling, n-step, prioritized,
    distributional and noisy."""

    Config = DQNConfig
    config: DQNConfig
    default_net = NetConfig(activation="relu")

    def __init__(self, spaces: Spaces, config: DQNConfig, net: NetConfig, device: torch.device):
        require(net.core == "none", f"net.core={net.core}: dqn has no memory; use r2d2")
        super().__init__(spaces, config, net, device, config.rollout_steps)
        self.atoms = torch.linspace(config.value_min, config.value_max, config.atoms, device=device)
        # TD errors of mean values do not measure how wrong a distribution is.
        self.records = config.alpha > 0 and config.atoms == 1

    def make_network(self, net: NetConfig) -> QNetwork:
        config = self.config
        head = QHeadConfig(config.dueling, config.noisy, config.atoms)
        return QNetwork(self.spaces.obs, self.actions, net, head)

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        config = self.config
        epsilon = linear_epsilon(
            env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps
        )
        return torch.full((lanes.size,), 0.0 if config.noisy else epsilon, device=self.device)

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        if self.config.noisy:
            for layer in noisy_layers(self.network):
                layer.zero_noise() if explore is None else layer.reset_noise(generator)
        return super().act(obs, reward, state, generator, explore)

    def q_values(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        out = self.network(obs)
        return expected_value(out, self.atoms) if self.config.atoms > 1 else out, state

    def precompute_targets(self, batch: Batch, coming: range | None = None) -> Batch:
        """Only without distributions and noise: noise is drawn again for every update."""
        plain = self.config.atoms == 1 and not self.config.noisy
        return super().precompute_targets(batch, coming) if plain else batch

    def before_update(self, generator: torch.Generator) -> None:
        """Draw new noise for the network and its target."""
        if self.config.noisy:
            for layer in (*noisy_layers(self.network), *noisy_layers(self.target)):
                layer.reset_noise(generator)

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        assert batch.weight is not None
        if self.config.atoms == 1:
            return super().loss(batch, statistics)
        q, costs = self.distribution_costs(batch)
        priorities = costs.detach()
        scale = 1 / statistics[0].float()
        metrics = {"q_mean": q.detach().sum() * scale, "td_error": priorities.sum() * scale}
        total = (costs * batch.weight).sum() * scale
        return Loss(total, metrics, priorities if self.config.alpha else None)

    def values_and_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.config.atoms == 1:
            return super().values_and_targets(batch)
        steps, (now, later) = batch.steps, rows_of(batch)
        value = chosen_value(expected_value(self.network(now), self.atoms), steps.action[0])
        coming = expected_value(self.target(later), self.atoms)
        double = self.config.double
        chooser = expected_value(self.network(later), self.atoms) if double else coming
        best = allowed(chooser, self.legal(later)).argmax(-1)
        return value, steps.reward[0] + steps.discount[0] * chosen_value(coming, best)

    def distribution_costs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean values [B] of the actions taken, and cross-entropies [B] to their targets."""
        steps, atoms = batch.steps, self.atoms
        now, later = rows_of(batch)
        logits = chosen_distribution(self.network(now), steps.action[0].long())
        with torch.no_grad():
            target = self.target(later)
            chooser = self.network(later) if self.config.double else target
            value = allowed(expected_value(chooser, atoms), self.legal(later))
            best = chosen_distribution(target, value.argmax(-1))
            goal = project_onto_atoms(best.softmax(-1), steps.reward[0], steps.discount[0], atoms)
        return expected_value(logits, atoms), -(goal * logits.log_softmax(-1)).sum(-1)


def chosen_distribution(logits: Tensor, action: Tensor) -> Tensor:
    """Return the logits [B, Z] of the actions [B], out of [B, A, Z]."""
    return logits[torch.arange(len(action), device=action.device), action]


def noisy_layers(network: nn.Module) -> list[NoisyLinear]:
    """Return the layers with noise in their weights."""
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
