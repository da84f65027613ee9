"""Networks of action values."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import require
from rookery.networks.build import NetConfig, Trunk
from rookery.networks.encoders import linear
from rookery.networks.legal import described
from rookery.networks.noisy import NoisyLinear
from rookery.networks.recurrent import State


class QHeadConfig(NamedTuple):
    """How features become action values."""

    dueling: bool = False
    """Value and advantages apart (Wang et al. 2016)."""
    noisy: bool = False
    """Noise in the weights instead of in the actions."""
    atoms: int = 1
    """Values are distributions over so many atoms (Bellemare et al. 2017); 1: plain numbers."""


class QHead(nn.Module):
    """Features [..., F] to values [..., A], or to logits [..., A, atoms]."""

    def __init__(self, features: int, actions: int, config: QHeadConfig):
        super().__init__()
        self.actions = actions
        self.config = config
        outputs = (actions + config.dueling) * config.atoms
        self.out = NoisyLinear(features, outputs) if config.noisy else linear(features, outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        out = self.out(features).float()
        if self.config.atoms > 1:
            out = out.unflatten(-1, (-1, self.config.atoms))
            return self.combined(out, -2)
        return self.combined(out, -1)

    def combined(self, out: Tensor, axis: int) -> Tensor:
        """Value plus advantage less its mean, where the two come apart."""
        if not self.config.dueling:
            return out
        advantage, value = out.split([self.actions, 1], axis)
        return value + advantage - advantage.mean(axis, keepdim=True)


class QNetwork(nn.Module):
    """Observations [..., *shape] to action values; no memory."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        require(not net.per_action, "net.per_action: rows are scored by policies only, as of ppo")
        self.trunk = Trunk(described(obs_space), net)
        self.head = QHead(self.trunk.features, actions, head)

    def forward(self, obs: Tree) -> Tensor:
        return self.head(self.trunk(obs, ())[0])


class Inputs(NamedTuple):
    """What a recurrent network sees beside the observation."""

    action: Tensor
    """The action before, one-hot, [T, B, A]; zeros at an episode's start."""
    reward: Tensor
    """The reward before, [T, B]."""


class RecurrentQNetwork(nn.Module):
    """Observations, previous actions and rewards [T, B, ...] to action values, with memory."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        self.actions = actions
        self.trunk = Trunk(described(obs_space), net, beside=actions + 1)
        self.head = QHead(self.trunk.features, actions, head)

    def initial_state(self, batch: int, device: torch.device) -> State:
        """The state at the start of an episode."""
        return self.trunk.initial_state(batch, device)

    def forward(self, obs: Tree, inputs: Inputs, state: State) -> tuple[Tensor, State]:
        """Values, and the state after the last row."""
        features, state = self.trunk(obs, state, beside(inputs))
        return self.head(features), state

    def window(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> Tensor:
        """Values of rows before some of which, marked in `reset`, the state is cleared."""
        return self.head(self.trunk.window(obs, state, reset, beside(inputs)))

    def after(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> State:
        """The state after the last of such rows."""
        return self.trunk.after(obs, state, reset, beside(inputs))


def beside(inputs: Inputs) -> Tensor:
    """The inputs as one vector, [T, B, A + 1]."""
    return torch.cat([inputs.action, inputs.reward.unsqueeze(-1)], -1)
