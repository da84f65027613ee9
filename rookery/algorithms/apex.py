"""Ape-X DQN (Horgan et al. 2018): many actors that explore to different degrees fill one
prioritized replay memory while the learner learns from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rookery.algorithms.base import Spaces, register
from rookery.algorithms.off_policy import (
    LadderAlgorithm,
    LadderConfig,
    count_actions,
    rows_of,
    target_of,
    transition_loss,
)
from rookery.algorithms.replay_spec import collection_of, transition_spec
from rookery.data.steps import Batch, Loss
from rookery.data.tree import Tree
from rookery.errors import require
from rookery.memory.replay import Replay
from rookery.networks.build import NetConfig
from rookery.networks.q import QHeadConfig, QNetwork


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(LadderConfig):
    """Settings of Ape-X."""

    rollout_steps: int = 16
    """Rows that an actor collects from each environment before it adds them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.rollout_steps >= 1,
            f"algo.rollout_steps must be at least 1, got {self.rollout_steps}",
        )


@register("apex")
class ApeX(LadderAlgorithm):
    """Double, dueling, n-step Q-learning; first priorities come with the rows."""

    Config = ApeXConfig
    config: ApeXConfig
    network: QNetwork
    target: QNetwork
    default_net = NetConfig(activation="relu")

    def __init__(self, spaces: Spaces, config: ApeXConfig, net: NetConfig, device: torch.device):
        actions = count_actions("apex", spaces.action)
        require(net.core == "none", f"net.core={net.core}: apex has no memory; use r2d2")
        self.spaces = spaces
        self.config = config
        self.device = device
        self.start = int(spaces.action.start)  # type: ignore[attr-defined]
        head = QHeadConfig(config.dueling)
        self.network = QNetwork(spaces.obs, actions, net, head).to(device)
        self.target = target_of(self.network)
        self.collection = collection_of(spaces, config.rollout_steps)

    def q_values(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return self.network(obs), state

    def memory(self, lanes: int, writers: int, seed: int) -> Replay:
        config = self.config
        spec = transition_spec(config, self.spaces, config.rollout_steps, self.device, True)
        return spec.build(lanes, writers, seed)

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        legal = self.legal(rows_of(batch)[1])
        return transition_loss(self.network, self.target, batch, statistics[0], self.config, legal)
