"""The actor-critic network, and its policy heads: action distributions from features."""

from __future__ import annotations

import math
from typing import ClassVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.data.tree import Tree, tree_map
from rookery.errors import BadInput
from rookery.networks.build import NetConfig, Trunk, has_images
from rookery.networks.encoders import (
    IMPOSSIBLE,
    EntityNumbers,
    legal_actions_of,
    mask_illegal,
    orthogonal_linear,
    without_action_mask,
)
from rookery.networks.recurrent import State


class PolicyHead(nn.Module):
    """A distribution whose parameters [..., P] `forward` computes from features, in float32 under
    autocast too: PPO's probability ratios are sensitive to rounding.

    `sample` and `mode` return actions in the form that `log_prob` takes; `to_env` converts them to
    the environment's action space. `sample` is deterministic: it takes random numbers from `draw`.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("logits",)
    """Names of the equal parts of the parameters."""
    highest_entropy: float | None = None
    """Entropy of the uniform policy; None if there is no such policy."""

    def __init__(self, features: int, outputs: int):
        super().__init__()
        self.linear = orthogonal_linear(features, outputs, gain=0)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).float()

    def named(self, params: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name."""
        parts = params.chunk(len(self.parameter_names), -1)
        return dict(zip(self.parameter_names, parts, strict=True))

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Return random numbers for `rows` actions, [rows, ...]."""
        raise NotImplementedError

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        raise NotImplementedError

    def mode(self, params: Tensor) -> Tensor:
        raise NotImplementedError

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self, params: Tensor) -> Tensor:
        raise NotImplementedError

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return both; heads where they share work compute them together."""
        return self.log_prob(params, action), self.entropy(params)

    def to_env(self, action: Tensor) -> Tensor:
        raise NotImplementedError


class Categorical(PolicyHead):
    """Discrete(n): logits [..., n], actions [...] counted from 0.

    Features are [..., F], or with `per_action` [..., n, F]: each action's logit is then a function
    of its own features.
    """

    def __init__(self, features: int, space: spaces.Discrete, per_action: bool = False):
        super().__init__(features, 1 if per_action else int(space.n))
        self.per_action = per_action
        self.count = int(space.n)
        self.highest_entropy = math.log(self.count)
        self.start = int(space.start)

    def forward(self, features: Tensor) -> Tensor:
        logits = super().forward(features)
        return logits.squeeze(-1) if self.per_action else logits

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return torch.empty(rows, self.count, device=device).exponential_(generator=generator)

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        return sample_softmax(params, draw)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return entropy_of(params.log_softmax(-1))

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = params.log_softmax(-1)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy_of(log_probs)

    def to_env(self, action: Tensor) -> Tensor:
        return action + self.start if self.start else action


class MultiCategorical(PolicyHead):
    """MultiDiscrete(nvec): logits [..., sum(nvec)], actions [..., len(nvec)] counted from 0."""

    start: Tensor

    def __init__(self, features: int, space: spaces.MultiDiscrete):
        super().__init__(features, int(space.nvec.sum()))
        self.shape = space.nvec.shape
        self.counts = [int(n) for n in space.nvec.flatten()]
        self.highest_entropy = sum(math.log(n) for n in self.counts)
        start = torch.as_tensor(np.asarray(space.start).flatten().copy())
        self.register_buffer("start", start, persistent=False)

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        times = torch.empty(rows, self.linear.out_features, device=device)
        return times.exponential_(generator=generator)

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        parts = zip(params.split(self.counts, -1), draw.split(self.counts, -1), strict=True)
        return torch.stack([sample_softmax(logits, times) for logits, times in parts], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([p.argmax(-1) for p in params.split(self.counts, -1)], -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        parts = zip(params.split(self.counts, -1), action.split(1, -1), strict=True)
        log_probs = [p.log_softmax(-1).gather(-1, a).squeeze(-1) for p, a in parts]
        return torch.stack(log_probs).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        entropies = [entropy_of(p.log_softmax(-1)) for p in params.split(self.counts, -1)]
        return torch.stack(entropies).sum(0)

    def to_env(self, action: Tensor) -> Tensor:
        return (action + self.start).view(*action.shape[:-1], *self.shape)


class Bernoulli(PolicyHead):
    """MultiBinary: a logit and an action 0 or 1 per bit, [..., bits]."""

    def __init__(self, features: int, space: spaces.MultiBinary):
        super().__init__(features, int(np.prod(space.shape)))
        self.shape = space.shape
        self.highest_entropy = self.linear.out_features * math.log(2)

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return torch.rand(rows, self.linear.out_features, generator=generator, device=device)

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        return (draw < params.sigmoid()).to(torch.int8)

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).to(torch.int8)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(params, action.to(params.dtype), reduction="none")
        return -loss.sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (F.softplus(params) - params * params.sigmoid()).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return action.view(*action.shape[:-1], *self.shape)


class Gaussian(PolicyHead):
    """Box: a mean per dimension, and a log-deviation that does not depend on the state.

    Actions are in units where a bounded dimension spans -1..1; `to_env` scales them to the space
    and clips. The log-probability is that of the action before clipping.
    """

    parameter_names = ("mean", "log_std")
    low: Tensor
    high: Tensor
    centre: Tensor
    half_range: Tensor

    def __init__(self, features: int, space: spaces.Box, log_std: float):
        super().__init__(features, int(np.prod(space.shape)))
        self.shape = space.shape
        low = torch.as_tensor(space.low.flatten(), dtype=torch.float32)
        high = torch.as_tensor(space.high.flatten(), dtype=torch.float32)
        bounded = (high - low).isfinite()
        centre = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
        half_range = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        fixed = {"low": low, "high": high, "centre": centre, "half_range": half_range}
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)
        self.log_std = nn.Parameter(torch.full((len(low),), log_std))

    def forward(self, features: Tensor) -> Tensor:
        mean = super().forward(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], -1)

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return torch.randn(rows, self.linear.out_features, generator=generator, device=device)

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return mean + log_std.exp() * draw

    def mode(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[0]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        z = (action - mean) * (-log_std).exp()
        return -(0.5 * z.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (params.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        scaled = self.centre + self.half_range * action
        return scaled.clamp(self.low, self.high).view(*action.shape[:-1], *self.shape)


def sample_softmax(logits: Tensor, times: Tensor) -> Tensor:
    """Return samples [...] of softmax(logits): argmin of times / exp(logits) for exponential
    times, which is the Gumbel-max trick."""
    return (logits - times.log()).argmax(-1)


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy [...] of normalised log-probabilities [..., n]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def policy_head(
    features: int, space: spaces.Space, log_std: float, per_action: bool = False
) -> PolicyHead:
    """Return the head for an action space; its weights are zero, so the first policy is uniform."""
    if isinstance(space, spaces.Discrete):
        return Categorical(features, space, per_action)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(features, space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(features, space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(features, space, log_std)
    raise BadInput(
        f"action space {space} is not supported by policies; use Discrete, MultiDiscrete,"
        " MultiBinary or a float Box"
    )


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
        rows = None
        if self.per_action:
            if (
                not isinstance(obs_space, spaces.Box)
                or not isinstance(action_space, spaces.Discrete)
                or len(obs_space.shape) != 2
                or obs_space.shape[0] != action_space.n
            ):
                raise BadInput(
                    "net.per_action needs observations [actions, features] and discrete actions,"
                    f" got {obs_space} and {action_space}"
                )
            rows = EntityNumbers(obs_space)
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
