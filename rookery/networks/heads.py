"""Policy heads: action distributions from features."""

from __future__ import annotations

import math
from typing import ClassVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.errors import BadInput
from rookery.networks.encoders import orthogonal_linear


class PolicyHead(nn.Module):
    """A distribution whose parameters [..., P] `forward` computes from features, in float32 under
    autocast too: PPO's probability ratios are sensitive to rounding.

    `sample` and `mode` return actions in the form that `log_prob` takes; `to_env` converts them to
    the environment's action space. `sample` is deterministic: it takes random numbers from `draw`.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("logits",)
    """Names of the equal parts of the parameters."""

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
        super().__init__()
        self.linear = orthogonal_linear(features, 1 if per_action else int(space.n), gain=0)
        self.per_action = per_action
        self.count = int(space.n)
        self.start = int(space.start)

    def forward(self, features: Tensor) -> Tensor:
        logits = self.linear(features).float()
        return logits.squeeze(-1) if self.per_action else logits

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return exponential_times(rows, self.count, generator, device)

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
        super().__init__()
        self.shape = space.nvec.shape
        self.counts = [int(n) for n in space.nvec.flatten()]
        self.linear = orthogonal_linear(features, sum(self.counts), gain=0)
        start = torch.as_tensor(np.asarray(space.start).flatten().copy())
        self.register_buffer("start", start, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).float()

    def draw(self, rows: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return exponential_times(rows, sum(self.counts), generator, device)

    def sample(self, params: Tensor, draw: Tensor) -> Tensor:
        parts = zip(params.split(self.counts, -1), draw.split(self.counts, -1), strict=True)
        return torch.stack([sample_softmax(logits, times) for logits, times in parts], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([p.argmax(-1) for p in params.split(self.counts, -1)], -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        parts = zip(params.split(self.counts, -1), action.split(1, -1), strict=True)
        return sum_of([p.log_softmax(-1).gather(-1, a).squeeze(-1) for p, a in parts])

    def entropy(self, params: Tensor) -> Tensor:
        return sum_of([entropy_of(p.log_softmax(-1)) for p in params.split(self.counts, -1)])

    def to_env(self, action: Tensor) -> Tensor:
        return (action + self.start).view(*action.shape[:-1], *self.shape)


class Bernoulli(PolicyHead):
    """MultiBinary: a logit and an action 0 or 1 per bit, [..., bits]."""

    def __init__(self, features: int, space: spaces.MultiBinary):
        super().__init__()
        self.shape = space.shape
        self.linear = orthogonal_linear(features, int(np.prod(space.shape)), gain=0)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).float()

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
        super().__init__()
        self.shape = space.shape
        low = torch.as_tensor(space.low.flatten(), dtype=torch.float32)
        high = torch.as_tensor(space.high.flatten(), dtype=torch.float32)
        bounded = (high - low).isfinite()
        centre = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
        half_range = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        for name, value in (("low", low), ("high", high)):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("centre", centre, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)
        self.linear = orthogonal_linear(features, len(low), gain=0)
        self.log_std = nn.Parameter(torch.full((len(low),), log_std))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.linear(features).float()
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


def exponential_times(
    rows: int, count: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Return exponential random times [rows, count] for `sample_softmax`."""
    return torch.empty(rows, count, device=device).exponential_(generator=generator)


def sample_softmax(logits: Tensor, times: Tensor) -> Tensor:
    """Return samples [...] of softmax(logits): argmin of times / exp(logits) for exponential
    times, which is the Gumbel-max trick."""
    return (logits - times.log()).argmax(-1)


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy [...] of normalised log-probabilities [..., n]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def sum_of(terms: list[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return torch.stack(terms).sum(0)


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
