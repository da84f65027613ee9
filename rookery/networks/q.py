"""Networks for action values Q(s, a)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import require
from rookery.networks.build import NetConfig, Trunk, has_images, hidden_of, is_image
from rookery.networks.encoders import Mlp, NoisyLinear, orthogonal_linear, without_action_mask
from rookery.networks.images import image_encoder
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


class QNetwork(nn.Module):
    """Observations [..., *shape] to action values, without recurrent state.

    The last dense layer belongs to the head, so that a dueling head has it in each stream: the
    last of `net.hidden`, or for images the one after the convolutions.
    """

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        require(
            not net.per_action,
            "net.per_action=true is not supported by Q-networks; use ppo or vpg, or set it to"
            " false",
        )
        space = without_action_mask(obs_space)
        encoder = None
        *below, hidden = hidden_of(space, net) or (None,)
        if hidden is not None:
            net = replace(net, hidden=tuple(below))
        elif has_images(space) and net.encoder != "mlp":
            hidden = net.image_features
            encoder = image_encoder(space, net.encoder, None) if is_image(space) else None
        self.trunk = Trunk(space, net, encoder=encoder, noisy=head.noisy)
        self.head = QHead(self.trunk.features, actions, head, hidden, net.activation)

    def forward(self, obs: Tree) -> Tensor:
        return self.head(self.trunk(obs, ())[0])


class Inputs(NamedTuple):
    """Inputs of a recurrent Q-network in addition to the observation."""

    action: Tensor
    """Previous action, one-hot, [T, B, A]; zeros at an episode's start."""
    reward: Tensor
    """Previous reward, [T, B]."""

    @property
    def vector(self) -> Tensor:
        """Both as one vector, [T, B, A + 1]."""
        return torch.cat([self.action, self.reward.unsqueeze(-1)], -1)


class RecurrentQNetwork(nn.Module):
    """Observations, previous actions and rewards [T, B, ...] to action values [T, B, A], with a
    recurrent core; the streams of a dueling head have a layer of the core's width."""

    def __init__(self, obs_space: spaces.Space, actions: int, net: NetConfig, head: QHeadConfig):
        super().__init__()
        self.actions = actions
        space = without_action_mask(obs_space)
        self.trunk = Trunk(space, net, extra_inputs=actions + 1)
        hidden = net.core_size if head.dueling else None
        self.head = QHead(self.trunk.features, actions, head, hidden, net.activation)

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Return the state at the start of an episode."""
        return self.trunk.initial_state(batch, device)

    def forward(self, obs: Tree, inputs: Inputs, state: State) -> tuple[Tensor, State]:
        """Return the values and the state after the last row."""
        features, state = self.trunk(obs, state, inputs.vector)
        return self.head(features), state

    def window(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> Tensor:
        """Return the values of rows; the state is cleared before rows marked in `reset`."""
        return self.head(self.trunk.window(obs, state, reset, inputs.vector))

    def after(self, obs: Tree, inputs: Inputs, state: State, reset: Tensor | None) -> State:
        """Return the state after the last row; it is cleared before rows marked in `reset`."""
        assert self.trunk.core is not None
        return self.trunk.core.after(self.trunk.before_core(obs, inputs.vector), state, reset)


# ---------------------------------------------------------------- value distributions


def expected_value(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the means [...] of distributions with logits [..., Z] over atoms [Z]."""
    return logits.softmax(-1) @ atoms


def project_onto_atoms(
    probabilities: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor
) -> Tensor:
    """Project the distribution [B, Z] of reward + discount x value onto the atoms [Z] (C51,
    Bellemare et al. 2017, eq. 7).

    The probability of a value between two atoms is divided between them in proportion to
    nearness.
    """
    low, high, count = atoms[0], atoms[-1], len(atoms)
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(low, high)
    place = (moved - low) / (high - low) * (count - 1)
    nearness = (1 - (place.unsqueeze(-1) - torch.arange(count, device=atoms.device)).abs()).clamp(0)
    return (probabilities.unsqueeze(-1) * nearness).sum(-2)
