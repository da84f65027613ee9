"""Networks for action values Q(s, a)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import require
from rookery.networks.action_masks import without_action_mask
from rookery.networks.build import NetConfig, Trunk, hidden_of
from rookery.networks.encoders import Mlp, image_encoder, orthogonal_linear
from rookery.networks.images import has_images, is_image
from rookery.networks.noisy import NoisyLinear
from rookery.networks.recurrent import State

NEAR_ZERO = 0.1
"""Gain of the last layer: initial action values are all close to 0."""


class QHeadConfig(NamedTuple):
    """Settings of the head that computes action values from features."""

    dueling: bool = False
    """Separate streams for value and advantages (Wang et al. 2016)."""
    noisy: bool = False
    """Explore by noise in the weights of all dense layers instead of random actions."""
    atoms: int = 1
    """Atoms of the value distributions (Bellemare et al. 2017); 1: plain values."""


class Stream(nn.Module):
    """A hidden layer, unless its width is None, and a linear one: [..., F] to [..., outputs]."""

    def __init__(
        self, features: int, hidden: int | None, outputs: int, activation: str, noisy: bool
    ):
        super().__init__()
        self.hidden = Mlp(features, () if hidden is None else (hidden,), activation, noisy)
        width = self.hidden.features
        self.out = (
            NoisyLinear(width, outputs) if noisy else orthogonal_linear(width, outputs, NEAR_ZERO)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.hidden(features)).float()


class QHead(nn.Module):
    """Features [..., F] to values [..., A], or to logits [..., A, atoms].

    A dueling head has two streams, for the advantages and for the value, each with its own hidden
    layer: with a shared one both streams together would equal a single linear layer.
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
        """Return Q = V + A - mean(A) (Wang et al. 2016, eq. 9); without a value stream, A."""
        advantage = self.by_atom(self.advantage(features))
        if self.value is None:
            return advantage
        axis = -1 if self.config.atoms == 1 else -2
        return self.by_atom(self.value(features)) + advantage - advantage.mean(axis, keepdim=True)

    def by_atom(self, out: Tensor) -> Tensor:
        """Return outputs [..., n * atoms] as [..., n, atoms]; with one atom, unchanged."""
        atoms = self.config.atoms
        return out if atoms == 1 else out.unflatten(-1, (-1, atoms))


class Layers(NamedTuple):
    """Division of a network's layers between trunk and head."""

    trunk: NetConfig
    hidden: int | None
    """Width of the hidden layer in each of the head's streams."""
    encoder: nn.Module | None = None
    """Encoder instead of the trunk's default."""


def layers_of(space: spaces.Space, net: NetConfig, dueling: bool) -> Layers:
    """Return the layers of trunk and head.

    The last dense layer belongs to the head, so that a dueling head has it in each stream: the
    last of `net.hidden`, or for images the one after the convolutions. After a recurrent core the
    streams of a dueling head have a layer of the core's width.
    """
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
    """Observations [..., *shape] to action values, without recurrent state."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        require(
            not net.per_action,
            "net.per_action=true is not supported by Q-networks; use ppo or vpg, or set it to"
            " false",
        )
        space = without_action_mask(obs_space)
        layers = layers_of(space, net, head.dueling)
        self.trunk = Trunk(space, layers.trunk, encoder=layers.encoder, noisy=head.noisy)
        self.head = QHead(self.trunk.features, actions, head, layers.hidden, net.activation)

    def forward(self, obs: Tree) -> Tensor:
        return self.head(self.trunk(obs, ())[0])


class Inputs(NamedTuple):
    """Inputs of a recurrent Q-network in addition to the observation."""

    action: Tensor
    """Previous action, one-hot, [T, B, A]; zeros at an episode's start."""
    reward: Tensor
    """Previous reward, [T, B]."""


class RecurrentQNetwork(nn.Module):
    """Observations, previous actions and rewards [T, B, ...] to action values [T, B, A], with a
    recurrent core."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        self.actions = actions
        space = without_action_mask(obs_space)
        self.trunk = Trunk(space, net, extra_inputs=actions + 1)
        layers = layers_of(space, net, head.dueling)
        self.head = QHead(self.trunk.features, actions, head, layers.hidden, net.activation)

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Return the state at the start of an episode."""
        return self.trunk.initial_state(batch, device)

    def forward(self, obs: Tree, inputs: Inputs, state: State) -> tuple[Tensor, State]:
        """Return the values and the state after the last row."""
        features, state = self.trunk(obs, state, input_vector(inputs))
        return self.head(features), state

    def window(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> Tensor:
        """Return the values of rows; the state is cleared before rows marked in `reset`."""
        return self.head(self.trunk.window(obs, state, reset, input_vector(inputs)))

    def after(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> State:
        """Return the state after the last row; it is cleared before rows marked in `reset`."""
        return self.trunk.after(obs, state, reset, input_vector(inputs))


def input_vector(inputs: Inputs) -> Tensor:
    """Return the inputs as one vector, [T, B, A + 1]."""
    return torch.cat([inputs.action, inputs.reward.unsqueeze(-1)], -1)
