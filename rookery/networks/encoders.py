"""Layers and encoders: from observations to feature vectors, and to masks of legal actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import require

SMALL_TENSOR = 8192
"""Elements below which one call of tanh is faster than the four calls that replace it."""
WIDEST = 64
"""Largest default width of an embedding."""
ACTION_MASK = "action_mask"
"""Key of an observation that holds a mask of legal actions."""
IMPOSSIBLE = -1e9
"""Logit of an illegal action: its probability is 0, and since the logit is finite, so is its
contribution to the entropy."""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
Codes = spaces.Discrete | spaces.MultiDiscrete
Numbers = spaces.Box | spaces.MultiBinary


# ---------------------------------------------------------------- layers


def orthogonal_linear(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """Return a dense layer with orthogonal weights and zero bias; gain 0 gives zero weights."""
    return initialise(nn.Linear(inputs, outputs), gain)


def initialise(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Set orthogonal weights and zero bias; return the layer."""
    if gain:
        nn.init.orthogonal_(layer.weight, gain)
    else:
        nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class NoisyLinear(nn.Module):
    """y = (w + s_w * e_w) x + b + s_b * e_b (Fortunato et al. 2018, eq. 9) with factorised noise.

    e_w = f(e_out) f(e_in)^T and e_b = f(e_out) with f(x) = sign(x) sqrt(|x|) (eqs. 10 and 11).
    `reset_noise` draws it; after `zero_noise` the layer is the dense layer of the means.
    """

    row: Tensor
    column: Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.register_buffer("row", torch.zeros(inputs), persistent=False)
        self.register_buffer("column", torch.zeros(outputs), persistent=False)

    def reset_noise(self, generator: torch.Generator | None) -> None:
        """Draw new noise."""
        for part in (self.row, self.column):
            noise = torch.randn(part.shape, generator=generator, device=part.device)
            part.copy_(noise.sign() * noise.abs().sqrt())

    def zero_noise(self) -> None:
        """Set the noise to 0 until the next `reset_noise`."""
        self.row.zero_()
        self.column.zero_()

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(self.column, self.row))
        bias = torch.addcmul(self.bias, self.bias_sigma, self.column)
        return F.linear(x, weight, bias)


def sigmoid_tanh(x: Tensor) -> Tensor:
    """Return tanh(x) as 2 sigmoid(2x) - 1, accurate to 2e-7."""
    return (x + x).sigmoid_().mul_(2.0).sub_(1.0)


class SigmoidTanh(torch.autograd.Function):
    """`sigmoid_tanh` with the gradient of tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = sigmoid_tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)


class Tanh(nn.Module):
    """tanh; on the CPU through the sigmoid, which torch computes almost three times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        # is_compiling comes first: code exported for any batch size must not depend on numel.
        if torch.compiler.is_compiling() or x.numel() < SMALL_TENSOR or x.device.type != "cpu":
            return x.tanh()
        # In half precision the subtraction would cancel small values.
        if x.dtype in (torch.bfloat16, torch.float16):
            return x.tanh()
        return SigmoidTanh.apply(x) if torch.is_grad_enabled() else sigmoid_tanh(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}


class Mlp(nn.Sequential):
    """Dense layers on [..., inputs], each with an activation; `noisy` ones have learned noise."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], activation: str, noisy: bool = False):
        layers: list[nn.Module] = []
        for size in hidden:
            dense = NoisyLinear(inputs, size) if noisy else orthogonal_linear(inputs, size)
            layers += [dense, ACTIVATIONS[activation]()]
            inputs = size
        super().__init__(*layers)
        self.features = inputs


# ---------------------------------------------------------------- encoders


def features_of(encoder: nn.Module) -> int:
    """Return the width of an encoder's output."""
    features = encoder.features
    assert isinstance(features, int)
    return features


class FloatVector(nn.Module):
    """A Box or MultiBinary observation [..., *shape] as a float vector [..., features], clipped to
    plus and minus `clip`."""

    def __init__(self, space: Numbers, clip: float | None = None):
        super().__init__()
        self.dims = len(space.shape)
        self.features = int(np.prod(space.shape))
        self.clip = clip
        self.scale = None
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            self.scale = 1 / max(int(space.high.max()), 1)

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.float()
        if self.scale is not None:
            x = x * self.scale
        if self.dims != 1:
            x = x.flatten(-self.dims) if self.dims else x.unsqueeze(-1)
        return x if self.clip is None else x.clamp(-self.clip, self.clip)


class OneHot(nn.Module):
    """A Discrete or MultiDiscrete observation as concatenated one-hot vectors [..., features]."""

    start: Tensor

    def __init__(self, space: Codes):
        super().__init__()
        self.dims = len(space.shape or ())
        self.counts = [int(n) for n in counts_of(space).flatten()]
        self.features = sum(self.counts)
        start = torch.as_tensor(starts_of(space).flatten())
        self.register_buffer("start", start, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.unsqueeze(-1) if self.dims == 0 else obs.flatten(-self.dims)
        x = x.long() - self.start
        hot = [F.one_hot(x[..., i], n) for i, n in enumerate(self.counts)]
        return torch.cat(hot, -1).float()


class Embedding(nn.Module):
    """Codes [..., *shape] as learned vectors [..., features]; each component has its own table."""

    start: Tensor

    def __init__(self, space: Codes, size: int):
        super().__init__()
        counts, start = counts_of(space), starts_of(space)
        self.dims = len(space.shape or ())
        self.features = counts.size * size
        before = np.cumsum(counts.flatten()) - counts.flatten()
        self.register_buffer("start", torch.as_tensor(start.flatten() - before), persistent=False)
        self.weight = nn.Parameter(torch.randn(int(counts.sum()), size))

    def forward(self, obs: Tensor) -> Tensor:
        codes = obs.unsqueeze(-1) if self.dims == 0 else obs.flatten(-self.dims)
        return F.embedding(codes.long() - self.start, self.weight).flatten(-2)


class EntityCodes(nn.Module):
    """Codes of entities [..., N] or [..., N, K] as learned vectors [..., N, features]; entities
    share one table per column."""

    start: Tensor

    def __init__(self, space: spaces.MultiDiscrete, size: int | None):
        super().__init__()
        # Counts and starts are equal for all entities.
        counts, start = np.atleast_1d(space.nvec[0]), np.atleast_1d(starts_of(space)[0])
        self.single = len(space.shape) == 1
        sizes = [embedding_size(int(n)) if size is None else size for n in counts]
        self.features = sum(sizes)
        self.register_buffer("start", torch.as_tensor(start.copy()), persistent=False)
        self.weights = nn.ParameterList(
            torch.randn(int(n), width) for n, width in zip(counts, sizes, strict=True)
        )

    def forward(self, obs: Tensor) -> Tensor:
        codes = (obs.unsqueeze(-1) if self.single else obs).long() - self.start
        columns = [F.embedding(codes[..., i], weight) for i, weight in enumerate(self.weights)]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


class EntityNumbers(nn.Module):
    """Numbers of entities [..., N, F], clipped to plus and minus `clip`."""

    def __init__(self, space: spaces.Box, clip: float | None = None):
        super().__init__()
        self.features = int(space.shape[-1])
        self.clip = clip

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.float()
        return x if self.clip is None else x.clamp(-self.clip, self.clip)


class NestedEncoder(nn.Module):
    """A Dict or Tuple observation: the encoded parts, by their keys or indices, concatenated."""

    def __init__(self, parts: Mapping[Any, nn.Module]):
        super().__init__()
        self.keys = list(parts)
        self.parts = nn.ModuleList(parts.values())
        self.features = sum(features_of(part) for part in parts.values())

    def forward(self, obs: Tree) -> Tensor:
        features = [part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class Dense(nn.Module):
    """An encoder followed by dense layers."""

    def __init__(self, encoder: nn.Module, widths: tuple[int, ...], activation: str):
        super().__init__()
        self.encoder = encoder
        self.layers = Mlp(features_of(encoder), widths, activation)
        self.features = self.layers.features

    def forward(self, obs: Tree) -> Tensor:
        return self.layers(self.encoder(obs))


class Entities(nn.Module):
    """A set of entities [..., N, F]: the maximum or the mean over them, [..., F]."""

    def __init__(self, encoder: nn.Module, reduce: str):
        super().__init__()
        self.encoder = encoder
        self.reduce = reduce
        self.features = features_of(encoder)

    def forward(self, obs: Tree) -> Tensor:
        x = self.encoder(obs)
        return x.amax(-2) if self.reduce == "max" else x.mean(-2)


def counts_of(space: Codes) -> np.ndarray:
    """Return the number of codes of each component."""
    return np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec)


def starts_of(space: Codes) -> np.ndarray:
    """Return the smallest code of each component."""
    return np.broadcast_to(space.start, counts_of(space).shape)


def embedding_size(count: int) -> int:
    """Return the usual width of an embedding of `count` codes, about their square root."""
    return min(WIDEST, max(2, round(1.6 * count**0.56)))


# ---------------------------------------------------------------- legal actions


def legal_actions(obs: Tree, stacked: bool) -> Tensor:
    """Return the legal actions, bool [..., A]; of the masks of `stacked` frames the newest
    counts."""
    mask = obs[ACTION_MASK][..., -1, :] if stacked else obs[ACTION_MASK]
    legal = mask.bool()
    # If no action is legal, as after a game's last move, all are: every distribution and every
    # maximum needs at least one action.
    return legal | ~legal.any(-1, keepdim=True)


def legal_actions_of(obs: spaces.Space, action: spaces.Space) -> Callable[[Tree], Tensor] | None:
    """Return the function from observations with a mask to the legal actions, else None; raise for
    a bad mask."""
    if not has_mask(obs):
        return None
    mask = obs[ACTION_MASK]  # type: ignore[index]
    name = f'the observation\'s key "{ACTION_MASK}"'
    require(
        isinstance(action, spaces.Discrete),
        f"{name} needs a Discrete action space, got {action}; rename the key if it is not a mask"
        " of legal actions",
    )
    assert isinstance(action, spaces.Discrete)
    shape = tuple(mask.shape or ())
    require(
        isinstance(mask, spaces.MultiBinary | spaces.Box)
        and not np.issubdtype(mask.dtype, np.floating)
        and len(shape) in (1, 2)
        and shape[-1:] == (action.n,),
        f"{name} must be MultiBinary({action.n}) or an integer Box of that shape, one number per"
        f" action, 0 for illegal ones; got {mask}",
    )
    return partial(legal_actions, stacked=len(shape) == 2)


def has_mask(obs: spaces.Space) -> bool:
    """True if a space has the key "action_mask"."""
    return isinstance(obs, spaces.Dict) and ACTION_MASK in obs.spaces


def without_action_mask(obs: spaces.Space) -> spaces.Space:
    """Return the observation space without the mask: what the network encodes."""
    if not has_mask(obs):
        return obs
    assert isinstance(obs, spaces.Dict)
    rest = {name: part for name, part in obs.spaces.items() if name != ACTION_MASK}
    require(rest, f'the observation contains only "{ACTION_MASK}": add a key for the state')
    return spaces.Dict(rest)


def mask_illegal(values: Tensor, legal: Tensor | None, lowest: float) -> Tensor:
    """Return values or logits [..., A] with `lowest` for illegal actions."""
    return values if legal is None else values.masked_fill(~legal, lowest)
