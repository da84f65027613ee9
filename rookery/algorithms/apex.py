"""Ape-X DQN (Horgan et al. 2018): many actors that explore to different degrees fill one
prioritized replay memory while the learner learns from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rookery.algorithms.base import Spaces, register
from rookery.algorithms.off_policy import LadderAlgorithm, LadderConfig
from rookery.errors import require
from rookery.networks.build import NetConfig


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(LadderConfig):
    """Settings of Ape-X."""

    rollout_steps: int = 16
    """Rows that an actor collects from each environment before it adds them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("be at least 1", "rollout_steps")


@register("apex")
class ApeX(LadderAlgorithm):
    """Double, dueling, n-step Q-learning; first priorities come with the rows."""

    Config = ApeXConfig
    config: ApeXConfig
    default_net = NetConfig(activation="relu")

    def __init__(self, spaces: Spaces, config: ApeXConfig, net: NetConfig, device: torch.device):
        require(net.core == "none", f"net.core={net.core}: apex has no memory; use r2d2")
        super().__init__(spaces, config, net, device, config.rollout_steps)
