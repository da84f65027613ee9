"""From observations to feature vectors: one encoder a kind of space."""

from __future__ import annotations

import math
from typing import TypeVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.errors import require
from rookery.networks.activations import ACTIVATIONS

Convolutions = tuple[tuple[int, int, int], ...]
"""Channels, kernel size and stride of each layer."""

PLAIN: dict[str, Convolutions] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "small": ((16, 8, 4), (32, 4, 2)),
}
"""Networks of plain convolutions: of the DQN papers of 2015 (Nature) and 2013."""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def linear(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """A dense layer, orthogonal weights and zero bias; gain 0 gives zero weights."""
    layer = nn.Linear(inputs, outputs)
    return initialise(layer, gain)


def initialise(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Orthogonal weights, zero bias."""
    if gain:
        nn.init.orthogonal_(layer.weight, gain)
    else:
        nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Mlp(nn.Sequential):
    """Dense layers, each with its activation, on [..., inputs]."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], activation: str):
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [linear(inputs, size), ACTIVATIONS[activation]()]
            inputs = size
        super().__init__(*layers)
        self.features = inputs

    def forward(self, x: Tensor) -> Tensor:
        # Small networks spend more time in the calls of modules than in their arithmetic.
        for layer in self:
            x = F.linear(x, layer.weight, layer.bias) if type(layer) is nn.Linear else layer(x)
        return x


class FloatVector(nn.Module):
    """A Box or MultiBinary observation [..., *shape] as a float vector [..., features]."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary):
        super().__init__()
        self.dims = len(space.shape)
        self.features = int(np.prod(space.shape))
        self.scale = 1 / 255 if space.dtype == np.uint8 else None

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.float()
        if self.scale is not None:
            x = x * self.scale
        if self.dims == 0:
            return x.unsqueeze(-1)
        return x.flatten(-self.dims) if self.dims > 1 else x


class OneHot(nn.Module):
    """A Discrete or MultiDiscrete observation as concatenated one-hot vectors [..., features]."""

    start: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete):
        super().__init__()
        sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        self.dims = len(space.shape or ())
        self.counts = [int(n) for n in sizes.flatten()]
        self.features = sum(self.counts)
        start = torch.as_tensor(np.broadcast_to(space.start, sizes.shape).flatten().copy())
        self.register_buffer("start", start, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.unsqueeze(-1) if self.dims == 0 else obs.flatten(-self.dims)
        x = x.long() - self.start
        hot = [F.one_hot(x[..., i], n) for i, n in enumerate(self.counts)]
        return torch.cat(hot, -1).float()


class Image(nn.Module):
    """A uint8 image [..., C, H, W], [..., H, W, C] or a stack of colour frames [..., S, H, W, C]
    as floats in 0..1, [N, channels, H, W] in channels-last memory."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.dims = len(shape)
        self.stacked_colour = len(shape) == 4
        self.channels_first = len(shape) == 3 and shape[0] < min(shape[1], shape[2])
        if self.stacked_colour:
            stack, height, width, colours = shape
            self.shape = (stack * colours, height, width)
        elif self.channels_first:
            self.shape = (shape[0], shape[1], shape[2])
        else:
            self.shape = (shape[2], shape[0], shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.reshape(-1, *obs.shape[-self.dims :])
        if self.stacked_colour:
            x = x.permute(0, 1, 4, 2, 3).flatten(1, 2)
        elif not self.channels_first:
            x = x.permute(0, 3, 1, 2)
        return x.to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)


def least_size(layers: Convolutions) -> int:
    """The side of the smallest image that plain convolutions leave one place of."""
    size = 1
    for _, kernel, stride in reversed(layers):
        size = (size - 1) * stride + kernel
    return size


class Plain(nn.Module):
    """Plain convolutions without padding, then one dense layer."""

    def __init__(self, shape: tuple[int, ...], features: int, name: str):
        super().__init__()
        self.image = Image(shape)
        inputs, height, width = self.image.shape
        least = least_size(PLAIN[name])
        require(
            min(height, width) >= least,
            f"net.encoder={name} needs images of at least {least}x{least},"
            f" got {height}x{width}; use --net.encoder impala or --env.resize 84,84",
        )
        layers: list[nn.Module] = []
        for channels, kernel, stride in PLAIN[name]:
            layers += [initialise(nn.Conv2d(inputs, channels, kernel, stride)), nn.ReLU()]
            inputs = channels
        self.convolutions = nn.Sequential(*layers)
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, *self.image.shape)).numel()
        self.dense = linear(flat, features)
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        # The features are flattened in memory order (H, W, C): no copy out of channels-last.
        x = self.convolutions(self.image(obs)).permute(0, 2, 3, 1).flatten(1)
        return F.relu(self.dense(x)).view(*obs.shape[: -self.image.dims], self.features)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = initialise(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = initialise(nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Impala(nn.Module):
    """The residual network of the IMPALA paper (Espeholt et al. 2018)."""

    def __init__(self, shape: tuple[int, ...], features: int):
        super().__init__()
        self.image = Image(shape)
        inputs = self.image.shape[0]
        stages: list[nn.Module] = []
        for channels in (16, 32, 32):
            stages += [
                initialise(nn.Conv2d(inputs, channels, 3, padding=1)),
                nn.MaxPool2d(3, 2, padding=1),
                Residual(channels),
                Residual(channels),
            ]
            inputs = channels
        self.stages = nn.Sequential(*stages)
        with torch.no_grad():
            flat = self.stages(torch.zeros(1, *self.image.shape)).numel()
        self.dense = linear(flat, features)
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        x = F.relu(self.stages(self.image(obs))).permute(0, 2, 3, 1).flatten(1)
        return F.relu(self.dense(x)).view(*obs.shape[: -self.image.dims], self.features)


def joined(parts: list[Tensor]) -> Tensor:
    """Features side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def features_of(encoder: nn.Module) -> int:
    """How wide an encoder's output is."""
    features = encoder.features
    assert isinstance(features, int)
    return features


def is_image(space: spaces.Space) -> bool:
    """Whether a space holds uint8 images."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)


def image_encoder(space: spaces.Space, kind: str, features: int) -> nn.Module:
    """The encoder of images that `kind` names; auto: the one that suits their size."""
    assert isinstance(space, spaces.Box)
    if kind == "mlp":
        return FloatVector(space)
    if kind == "auto":
        fits = min(Image(space.shape).shape[1:]) >= least_size(PLAIN["nature"])
        kind = "nature" if fits else "impala"
    return Impala(space.shape, features) if kind == "impala" else Plain(space.shape, features, kind)


def has_images(space: spaces.Space) -> bool:
    """Whether any part of an observation space is an image."""
    if isinstance(space, spaces.Dict):
        return any(has_images(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(has_images(part) for part in space.spaces)
    return is_image(space)
