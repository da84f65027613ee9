"""Ape-X DQN (Horgan et al. 2018): many actors that explore to different degrees fill one
prioritized replay memory while the learner learns from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rookery.algorithms.base import Collection, Spaces, register
from rookery.algorithms.exploration import epsilon_greedy, ladder
from rookery.algorithms.off_policy import (
    ReplayAlgorithm,
    ReplayConfig,
    chosen_value,
    copy_parameters,
    count_actions,
    transition_loss,
    transition_replay,
)
from rookery.data.steps import Batch, Decision, Lanes, Loss
from rookery.data.tree import Tree
from rookery.errors import require
from rookery.memory.replay import Replay
from rookery.networks.build import NetConfig
from rookery.networks.q import QHeadConfig, QNetwork


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(ReplayConfig):
    """Settings of Ape-X."""

    samples_per_insert: float | None = None
    """How often each stored step is learned from on average; none: as often as it happens."""
    rollout_steps: int = 16
    """Rows that an actor collects from each environment before it adds them."""
    epsilon_base: float = 0.4
    """Environment i of N explores with probability base^(1 + power i / (N - 1))."""
    epsilon_power: float = 7.0
    """How much less the last environment explores than the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        base, power = self.epsilon_base, self.epsilon_power
        require(0 < base <= 1, f"algo.epsilon_base must lie in (0, 1], got {base}")
        require(power >= 0, f"algo.epsilon_power must be 0 or more, got {power}")
        require(
            self.rollout_steps >= 1,
            f"algo.rollout_steps must be at least 1, got {self.rollout_steps}",
        )


@register("apex")
class ApeX(ReplayAlgorithm):
    """Double, dueling, n-step Q-learning; first priorities come with the rows."""

    Config = ApeXConfig
    config: ApeXConfig
    network: QNetwork
    target: QNetwork
    default_net = NetConfig(activation="relu")
    asynchronous = True

    def __init__(self, spaces: Spaces, config: ApeXConfig, net: NetConfig, device: torch.device):
        actions = count_actions("apex", spaces.action)
        require(net.core == "none", f"net.core={net.core}: apex has no memory; use r2d2")
        self.spaces = spaces
        self.config = config
        self.device = device
        self.start = int(spaces.action.start)  # type: ignore[attr-defined]
        head = QHeadConfig(config.dueling)
        self.network = QNetwork(spaces.obs, actions, net, head).to(device)
        self.target = QNetwork(spaces.obs, actions, net, head).to(device).requires_grad_(False)
        copy_parameters(self.target, self.network)
        self.collection = Collection(config.rollout_steps, newest_frame=spaces.frame_stack > 1)

    def initial_state(self, batch: int) -> Tree:
        return ()

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        epsilon = ladder(lanes, self.config.epsilon_base, self.config.epsilon_power)
        return epsilon.to(self.device)

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        q = self.network(obs)
        action = epsilon_greedy(q, explore, generator)
        extra = {"q": chosen_value(q, action), "value": q.amax(-1)}
        return Decision(action, action + self.start, state, extra)

    def memory(self, lanes: int, writers: int, seed: int) -> Replay:
        return transition_replay(
            self.config,
            self.spaces,
            recorded=True,
            lanes=lanes,
            writers=writers,
            rows_at_once=self.config.rollout_steps,
            device=self.device,
            seed=seed,
        )

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        return transition_loss(self.network, self.target, batch, statistics[0], self.config)
