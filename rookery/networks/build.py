"""From spaces and a config to a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput, require
from rookery.networks.action_masks import IMPOSSIBLE, described, legality, restricted
from rookery.networks.encoders import Mlp, features_of, linear
from rookery.networks.heads import PolicyHead, policy_head
from rookery.networks.images import has_images
from rookery.networks.mixed import Encoding, EntityNumbers, PartConfig, encoder_of
from rookery.networks.recurrent import Core, State


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The network, described."""

    encoder: Literal["auto", "mlp", "nature", "small", "narrow", "impala"] = "auto"
    """How images are encoded; auto: nature, or impala below 36x36. Vectors take an MLP."""
    image_features: int = 512
    """Width of the dense layer after the convolutions."""
    parts: dict[str, PartConfig] = field(default_factory=dict)
    """How parts of a nested observation are encoded, by their path: {"units/kind": {"embedding":
    8}, "units": {"dense": [32], "reduce": "mean"}}; the rest is inferred from their spaces."""
    hidden: tuple[int, ...] | None = None
    """Widths of the dense layers; none: 64,64, and no further layers after an image encoder."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation of the dense layers."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core after the dense layers."""
    core_size: int = 128
    """Units of the recurrent core."""
    per_action: bool = False
    """Observations [A, F] describe each of A actions: one network scores row by row what the
    policy chooses from, and the value sees all rows."""
    shared: bool | None = None
    """Whether policy and value share their layers; none: they do for images."""
    log_std: float = 0.0
    """First log-deviation of Gaussian actions, in units where the bounds are -1 and 1."""

    def __post_init__(self) -> None:
        widths = (*(self.hidden or ()), self.image_features, self.core_size)
        require(
            all(width > 0 for width in widths),
            "net.hidden, net.image_features and net.core_size must be positive,"
            f" got {self.hidden}, {self.image_features} and {self.core_size}",
        )
        require(
            not self.per_action or (self.core == "none" and not self.shared),
            "net.per_action: rows are scored without memory, and by a network that is not the"
            f" value's; got net.core={self.core} and net.shared={self.shared}",
        )


def hidden_of(space: spaces.Space, config: NetConfig) -> tuple[int, ...]:
    """Widths of the dense layers after the encoder."""
    if config.hidden is not None:
        return config.hidden
    return () if has_images(space) and config.encoder != "mlp" else (64, 64)


class Trunk(nn.Module):
    """Encoder, dense layers and core: observations [T, B, ...] to features [T, B, F].

    The core may take further inputs `beside` the dense layers' features, [T, B, beside]. An
    `encoder` given is instead of the space's own. `noisy` dense layers carry learned noise.
    """

    def __init__(
        self,
        space: spaces.Space,
        config: NetConfig,
        beside: int = 0,
        encoder: nn.Module | None = None,
        noisy: bool = False,
    ):
        super().__init__()
        encoding = Encoding(config.encoder, config.image_features, config.activation, config.parts)
        self.encoder = encoder or encoder_of(space, encoding)
        width = features_of(self.encoder)
        self.dense = Mlp(width, hidden_of(space, config), config.activation, noisy)
        width = self.dense.features + beside
        self.core = None if config.core == "none" else Core(config.core, width, config.core_size)
        self.features = width if self.core is None else self.core.features

    def initial_state(self, batch: int, device: torch.device) -> State:
        """The state at the start of an episode."""
        return () if self.core is None else self.core.initial_state(batch, device)

    def forward(
        self, obs: Tree, state: State, beside: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Features, and the state after the last row."""
        features = self.before_core(obs, beside)
        return (features, state) if self.core is None else self.core(features, state)

    def window(
        self, obs: Tree, state: State, reset: Tensor | None, beside: Tensor | None = None
    ) -> Tensor:
        """Features of rows before some of which, marked in `reset`, the state is cleared."""
        features = self.before_core(obs, beside)
        return features if self.core is None else self.core.window(features, state, reset)

    def after(
        self, obs: Tree, state: State, reset: Tensor | None, beside: Tensor | None = None
    ) -> State:
        """The state after the last of such rows."""
        features = self.before_core(obs, beside)
        return state if self.core is None else self.core.after(features, state, reset)

    def before_core(self, obs: Tree, beside: Tensor | None) -> Tensor:
        """What the core sees."""
        features = self.dense(self.encoder(obs))
        return features if beside is None else torch.cat([features, beside], -1)


def rows_of(obs: spaces.Space, action: spaces.Space) -> EntityNumbers:
    """The encoder of observations [..., A, F] that keeps a row for each of A actions."""
    if (
        not isinstance(obs, spaces.Box)
        or not isinstance(action, spaces.Discrete)
        or len(obs.shape) != 2
        or obs.shape[0] != action.n
    ):
        raise BadInput(
            "net.per_action needs observations [actions, features] and discrete actions,"
            f" got {obs} and {action}"
        )
    return EntityNumbers(obs)


class ActorCritic(nn.Module):
    """A policy and a value, on one trunk or on two.

    Without a core the leading axes of observations are free; with one they are [T, B]. The
    recurrent state holds the policy's parts, then the value's where its trunk is its own. Without
    a critic every value is 0.
    """

    head: PolicyHead

    def __init__(
        self,
        obs_space: spaces.Space,
        action_space: spaces.Space,
        config: NetConfig,
        critic: bool = True,
    ):
        super().__init__()
        self.recurrent = config.core != "none"
        self.legality = legality(obs_space, action_space)
        obs_space = described(obs_space)
        shared = has_images(obs_space) if config.shared is None else config.shared
        self.per_action = config.per_action
        self.shared = (shared and not self.per_action) or not critic
        rows = rows_of(obs_space, action_space) if self.per_action else None
        self.policy_trunk = Trunk(obs_space, config, encoder=rows)
        self.value_trunk = self.policy_trunk if self.shared else Trunk(obs_space, config)
        features = self.policy_trunk.features
        self.head = policy_head(features, action_space, config.log_std, self.per_action)
        self.value_head = linear(self.value_trunk.features, 1, gain=1.0) if critic else None

    def initial_state(self, batch: int, device: torch.device) -> State:
        """The state at the start of an episode."""
        policy = self.policy_trunk.initial_state(batch, device)
        return policy if self.shared else policy + self.value_trunk.initial_state(batch, device)

    @property
    def values_apart(self) -> bool:
        """Whether values come from a network of their own that needs no state."""
        return not (self.shared or self.recurrent)

    def policy(self, obs: Tree) -> Tensor:
        """Parameters of the action distribution, without a core."""
        return self.chosen_from(self.policy_trunk(obs, ())[0], obs)

    def chosen_from(self, features: Tensor, obs: Tree) -> Tensor:
        """Parameters of the distribution over the actions that the observations allow."""
        legal = None if self.legality is None else self.legality(obs)
        return restricted(self.head(features), legal, IMPOSSIBLE)

    def value(self, obs: Tree) -> Tensor:
        """Value, without a core."""
        return self.judged(self.value_trunk(obs, ())[0])

    def judged(self, features: Tensor) -> Tensor:
        """Values [...] of features [..., F]."""
        if self.value_head is None:
            leading = features.shape[: -2 if self.per_action else -1]
            return features.new_zeros(leading, dtype=torch.float32)
        return self.value_head(features).squeeze(-1).float()

    def forward(
        self, obs: Tree, state: State, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distribution parameters and value of a window of rows, the state before the first given
        and cleared before those marked in `reset`."""
        parts = self.policy_parts(state)
        features = self.policy_trunk.window(obs, state[:parts], reset)
        params = self.chosen_from(features, obs)
        if not self.shared:
            features = self.value_trunk.window(obs, state[parts:], reset)
        return params, self.judged(features)

    def step(self, obs: Tree, state: State) -> tuple[Tensor, Tensor, State]:
        """Distribution parameters, value and next state for one row, [B, ...]."""
        row = tree_map(lambda x: x.unsqueeze(0), obs) if self.recurrent else obs
        parts = self.policy_parts(state)
        features, after = self.policy_trunk(row, state[:parts])
        params = self.chosen_from(features, row)
        if not self.shared:
            features, value_after = self.value_trunk(row, state[parts:])
            after = after + value_after
        value = self.judged(features)
        if self.recurrent:
            params, value = params.squeeze(0), value.squeeze(0)
        return params, value, after

    def policy_parts(self, state: State) -> int:
        """How many parts of the state are the policy's."""
        return len(state) if self.shared else len(state) // 2
