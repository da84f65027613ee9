"""Networks of action values."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import require
from rookery.networks.action_masks import described
from rookery.networks.build import NetConfig, Trunk, hidden_of
from rookery.networks.encoders import Mlp, image_encoder, linear
from rookery.networks.images import has_images, is_image
from rookery.networks.noisy import NoisyLinear
from rookery.networks.recurrent import State

NEAR_ZERO = 0.1
"""Gain of the last layer: at the start all actions are worth about the same, and nothing."""


class QHeadConfig(NamedTuple):
    """How features become action values."""

    dueling: bool = False
    """Value and advantages from streams of their own (Wang et al. 2016)."""
    noisy: bool = False
    """Noise in the weights of all dense layers instead of in the actions."""
    atoms: int = 1
    """Values are distributions over so many atoms (Bellemare et al. 2017); 1: plain numbers."""


class Stream(nn.Module):
    """A hidden layer, if it has a width, and the output: features [..., F] to [..., outputs]."""

    def __init__(
        self, features: int, hidden: int | None, outputs: int, activation: str, noisy: bool
    ):
        super().__init__()
        self.hidden = Mlp(features, () if hidden is None else (hidden,), activation, noisy)
        width = self.hidden.features
        self.out = NoisyLinear(width, outputs) if noisy else linear(width, outputs, NEAR_ZERO)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.hidden(features)).float()


class QHead(nn.Module):
    """Features [..., F] to values [..., A], or to logits [..., A, atoms].

    A dueling head has two streams, for the advantages and for the value, each with a hidden layer:
    if they shared it, they could represent no more than one linear layer does.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        config: QHeadConfig,
        hidden: int | None = None,
        activation: str = "relu",
    ):
        super().__init__()
        self.config = config

        def stream(outputs: int) -> Stream:
            return Stream(features, hidden, outputs * config.atoms, activation, config.noisy)

        self.advantage = stream(actions)
        self.value = stream(1) if config.dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Value plus advantage less its mean; without a value stream the advantages alone."""
        advantage = self.by_atom(self.advantage(features))
        if self.value is None:
            return advantage
        axis = -1 if self.config.atoms == 1 else -2
        return self.by_atom(self.value(features)) + advantage - advantage.mean(axis, keepdim=True)

    def by_atom(self, out: Tensor) -> Tensor:
        """Outputs with the atoms, if there are several, on an axis of their own."""
        atoms = self.config.atoms
        return out if atoms == 1 else out.unflatten(-1, (-1, atoms))


class Layers(NamedTuple):
    """How the layers of a network fall to trunk and head."""

    trunk: NetConfig
    hidden: int | None
    """Width of the hidden layer in each of the head's streams."""
    encoder: nn.Module | None = None
    """What encodes observations, if not the trunk's own choice."""


def layers_of(space: spaces.Space, net: NetConfig, dueling: bool) -> Layers:
    """The last dense layer is the head's, so that a dueling head has it once in each stream: that
    of `net.hidden`, or for images that after the convolutions. After a recurrent core the streams
    of a dueling head have a layer of the core's width."""
    if net.core != "none":
        return Layers(net, net.core_size if dueling else None)
    *below, last = hidden_of(space, net) or (None,)
    if last is not None:
        return Layers(replace(net, hidden=tuple(below)), last)
    if not has_images(space) or net.encoder == "mlp":
        return Layers(net, None)
    bare = image_encoder(space, net.encoder, None) if is_image(space) else None
    return Layers(net, net.image_features, bare)


class QNetwork(nn.Module):
    """Observations [..., *shape] to action values; no memory."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        require(not net.per_action, "net.per_action: rows are scored by policies only, as of ppo")
        space = described(obs_space)
        layers = layers_of(space, net, head.dueling)
        self.trunk = Trunk(space, layers.trunk, encoder=layers.encoder, noisy=head.noisy)
        self.head = QHead(self.trunk.features, actions, head, layers.hidden, net.activation)

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
        space = described(obs_space)
        self.trunk = Trunk(space, net, beside=actions + 1)
        layers = layers_of(space, net, head.dueling)
        self.head = QHead(self.trunk.features, actions, head, layers.hidden, net.activation)

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
