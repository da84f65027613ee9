"""NetConfig, the trunk of all networks, and the actor-critic network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput, require
from rookery.networks.action_masks import (
    IMPOSSIBLE,
    legal_actions_of,
    mask_illegal,
    without_action_mask,
)
from rookery.networks.encoders import Mlp, features_of, orthogonal_linear
from rookery.networks.heads import PolicyHead, policy_head
from rookery.networks.images import has_images
from rookery.networks.mixed import Encoding, EntityNumbers, PartConfig, encoder_of
from rookery.networks.recurrent import Core, State


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Settings of a network."""

    encoder: Literal["auto", "mlp", "nature", "small", "narrow", "impala"] = "auto"
    """Encoder of images; auto: nature, or impala below 36x36. Vectors go directly to the
    dense layers."""
    image_features: int = 512
    """Width of the dense layer after the convolutions."""
    parts: dict[str, PartConfig] = field(default_factory=dict)
    """Encoders of parts of a nested observation by path: {"units/kind": {"embedding": 8}, "units":
    {"dense": [32], "reduce": "mean"}}; other parts are encoded by their spaces."""
    hidden: tuple[int, ...] | None = None
    """Widths of the dense layers; none: 64,64, and no further layers after an image encoder."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation of the dense layers."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core after the dense layers."""
    core_size: int = 128
    """Units of the recurrent core."""
    per_action: bool = False
    """Observations [A, F] describe each of A actions: the policy's network scores each row
    separately, and the value's network sees all rows."""
    shared: bool | None = None
    """Policy and value share their layers; none: true for images only."""
    log_std: float = 0.0
    """Initial log-deviation of Gaussian actions, in units where the bounds are -1 and 1."""

    def __post_init__(self) -> None:
        widths = (*(self.hidden or ()), self.image_features, self.core_size)
        require(
            all(width > 0 for width in widths),
            "net.hidden, net.image_features and net.core_size must be positive,"
            f" got {self.hidden}, {self.image_features} and {self.core_size}",
        )
        require(
            not self.per_action or (self.core == "none" and not self.shared),
            "net.per_action needs net.core=none and net.shared=false,"
            f" got net.core={self.core} and net.shared={self.shared}",
        )


def hidden_of(space: spaces.Space, config: NetConfig) -> tuple[int, ...]:
    """Return the widths of the dense layers after the encoder."""
    if config.hidden is not None:
        return config.hidden
    return () if has_images(space) and config.encoder != "mlp" else (64, 64)


class Trunk(nn.Module):
    """Encoder, dense layers and recurrent core: observations [T, B, ...] to features [T, B, F].

    The core takes `extra_inputs` further inputs [T, B, extra_inputs] after the dense layers'
    features. `encoder` replaces the default encoder of the space. `noisy` dense layers have
    learned noise in their weights.
    """

    def __init__(
        self,
        space: spaces.Space,
        config: NetConfig,
        extra_inputs: int = 0,
        encoder: nn.Module | None = None,
        noisy: bool = False,
    ):
        super().__init__()
        encoding = Encoding(config.encoder, config.image_features, config.activation, config.parts)
        self.encoder = encoder or encoder_of(space, encoding)
        width = features_of(self.encoder)
        self.dense = Mlp(width, hidden_of(space, config), config.activation, noisy)
        width = self.dense.features + extra_inputs
        self.core = None if config.core == "none" else Core(config.core, width, config.core_size)
        self.features = width if self.core is None else self.core.features

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Return the state at the start of an episode."""
        return () if self.core is None else self.core.initial_state(batch, device)

    def forward(self, obs: Tree, state: State, extra: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the features and the state after the last row."""
        features = self.before_core(obs, extra)
        return (features, state) if self.core is None else self.core(features, state)

    def window(
        self, obs: Tree, state: State, reset: Tensor | None, extra: Tensor | None = None
    ) -> Tensor:
        """Return the features of rows; the state is cleared before rows marked in `reset`."""
        features = self.before_core(obs, extra)
        return features if self.core is None else self.core.window(features, state, reset)

    def after(
        self, obs: Tree, state: State, reset: Tensor | None, extra: Tensor | None = None
    ) -> State:
        """Return the state after the last row; it is cleared before rows marked in `reset`."""
        features = self.before_core(obs, extra)
        return state if self.core is None else self.core.after(features, state, reset)

    def before_core(self, obs: Tree, extra: Tensor | None) -> Tensor:
        """Return the inputs of the core."""
        features = self.dense(self.encoder(obs))
        return features if extra is None else torch.cat([features, extra], -1)


def per_action_encoder(obs: spaces.Space, action: spaces.Space) -> EntityNumbers:
    """Return the encoder of observations [..., A, F] that keeps a row for each of A actions."""
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
    """A policy and a value on one shared trunk or on two.

    Without a core observations may have any leading axes; with one they are [T, B]. The recurrent
    state holds the policy's parts, then the value's if it has its own trunk. Without a critic
    every value is 0.
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
        self.legality = legal_actions_of(obs_space, action_space)
        obs_space = without_action_mask(obs_space)
        shared = has_images(obs_space) if config.shared is None else config.shared
        self.per_action = config.per_action
        self.shared = (shared and not self.per_action) or not critic
        rows = per_action_encoder(obs_space, action_space) if self.per_action else None
        self.policy_trunk = Trunk(obs_space, config, encoder=rows)
        self.value_trunk = self.policy_trunk if self.shared else Trunk(obs_space, config)
        features = self.policy_trunk.features
        self.head = policy_head(features, action_space, config.log_std, self.per_action)
        self.value_head = (
            orthogonal_linear(self.value_trunk.features, 1, gain=1.0) if critic else None
        )

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Return the state at the start of an episode."""
        policy = self.policy_trunk.initial_state(batch, device)
        return policy if self.shared else policy + self.value_trunk.initial_state(batch, device)

    @property
    def has_separate_value(self) -> bool:
        """True if values have their own network without recurrent state."""
        return not (self.shared or self.recurrent)

    def policy(self, obs: Tree) -> Tensor:
        """Return the parameters of the action distribution; for networks without a core."""
        return self.action_params(self.policy_trunk(obs, ())[0], obs)

    def action_params(self, features: Tensor, obs: Tree) -> Tensor:
        """Return the parameters of the distribution over the legal actions."""
        legal = None if self.legality is None else self.legality(obs)
        return mask_illegal(self.head(features), legal, IMPOSSIBLE)

    def value(self, obs: Tree) -> Tensor:
        """Return the values; for networks without a core."""
        return self.value_from(self.value_trunk(obs, ())[0])

    def value_from(self, features: Tensor) -> Tensor:
        """Return the values [...] of features [..., F]."""
        if self.value_head is None:
            leading = features.shape[: -2 if self.per_action else -1]
            return features.new_zeros(leading, dtype=torch.float32)
        return self.value_head(features).squeeze(-1).float()

    def forward(
        self, obs: Tree, state: State, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return distribution parameters and values of a window of rows.

        `state` is the one before the first row; it is cleared before rows marked in `reset`.
        """
        parts = self.policy_parts(state)
        features = self.policy_trunk.window(obs, state[:parts], reset)
        params = self.action_params(features, obs)
        if not self.shared:
            features = self.value_trunk.window(obs, state[parts:], reset)
        return params, self.value_from(features)

    def step(self, obs: Tree, state: State) -> tuple[Tensor, Tensor, State]:
        """Return distribution parameters, value and next state for one row, [B, ...]."""
        row = tree_map(lambda x: x.unsqueeze(0), obs) if self.recurrent else obs
        parts = self.policy_parts(state)
        features, after = self.policy_trunk(row, state[:parts])
        params = self.action_params(features, row)
        if not self.shared:
            features, value_after = self.value_trunk(row, state[parts:])
            after = after + value_after
        value = self.value_from(features)
        if self.recurrent:
            params, value = params.squeeze(0), value.squeeze(0)
        return params, value, after

    def policy_parts(self, state: State) -> int:
        """Return how many parts of the state belong to the policy."""
        return len(state) if self.shared else len(state) // 2
