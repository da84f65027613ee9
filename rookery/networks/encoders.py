"""Encoders from observations to feature vectors, one per kind of space."""

from __future__ import annotations

import math
from itertools import islice
from typing import TypeVar

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.errors import require
from rookery.networks.activations import ACTIVATIONS
from rookery.networks.images import ImageInput, highest_of, image_input
from rookery.networks.noisy import NoisyLinear

Convolutions = tuple[tuple[int, int, int], ...]
"""Channels, kernel size and stride of each layer."""

CONVOLUTIONS: dict[str, Convolutions] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "small": ((16, 8, 4), (32, 4, 2)),
    "narrow": ((32, 8, 4), (64, 4, 2), (32, 3, 1)),
}
"""Layers of the DQN papers of 2015 (Nature) and 2013, and of one that narrows before the dense
layer."""
BIASED = {"nature", "small"}
"""Networks whose convolutions have biases."""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


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

    def forward(self, x: Tensor) -> Tensor:
        # For small networks, calling modules takes longer than their arithmetic.
        for layer in self:
            x = F.linear(x, layer.weight, layer.bias) if type(layer) is nn.Linear else layer(x)
        return x


class FloatVector(nn.Module):
    """A Box or MultiBinary observation [..., *shape] as a float vector [..., features]."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary):
        super().__init__()
        self.dims = len(space.shape)
        self.features = int(np.prod(space.shape))
        self.scale = None
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            self.scale = 1 / max(highest_of(space), 1)

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


def smallest_side(layers: Convolutions) -> int:
    """Return the side of the smallest image of which convolutions without padding leave a pixel."""
    size = 1
    for _, kernel, stride in reversed(layers):
        size = (size - 1) * stride + kernel
    return size


def convolve(image: ImageInput, layers: nn.Sequential, obs: Tensor) -> Tensor:
    """Return the output of `layers` for images; the first layer is a convolution.

    Its weights are scaled instead of the pixels, since there are fewer of them.
    """
    first = layers[0]
    assert isinstance(first, nn.Conv2d)
    weight = first.weight if image.scale == 1 else first.weight * image.scale
    x = F.conv2d(image(obs), weight, first.bias, first.stride, first.padding)
    for layer in islice(layers, 1, None):
        x = layer(x)
    return x


class ConvNet(nn.Module):
    """Convolutions without padding, then a dense layer; none if `features` is None."""

    def __init__(self, image: ImageInput, features: int | None, name: str):
        super().__init__()
        self.image = image
        inputs, height, width = self.image.shape
        least = smallest_side(CONVOLUTIONS[name])
        require(
            min(height, width) >= least,
            f"net.encoder={name} needs images of at least {least}x{least},"
            f" got {height}x{width}; use --net.encoder impala or --env.resize 84,84",
        )
        layers: list[nn.Module] = []
        for channels, kernel, stride in CONVOLUTIONS[name]:
            layer = nn.Conv2d(inputs, channels, kernel, stride, bias=name in BIASED)
            layers += [initialise(layer), nn.ReLU(inplace=True)]
            inputs = channels
        self.convolutions = nn.Sequential(*layers)
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, *self.image.shape)).numel()
        self.dense = None if features is None else orthogonal_linear(flat, features)
        self.features = features or flat

    def forward(self, obs: Tensor) -> Tensor:
        # Flatten in memory order (H, W, C), so that channels-last needs no copy.
        x = convolve(self.image, self.convolutions, obs).permute(0, 2, 3, 1).flatten(1)
        x = x if self.dense is None else F.relu(self.dense(x))
        return x.view(*obs.shape[: -self.image.dims], self.features)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = initialise(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = initialise(nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Impala(nn.Module):
    """The residual network of the IMPALA paper (Espeholt et al. 2018); without a dense layer if
    `features` is None."""

    def __init__(self, image: ImageInput, features: int | None):
        super().__init__()
        self.image = image
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
        self.dense = None if features is None else orthogonal_linear(flat, features)
        self.features = features or flat

    def forward(self, obs: Tensor) -> Tensor:
        x = F.relu(convolve(self.image, self.stages, obs)).permute(0, 2, 3, 1).flatten(1)
        x = x if self.dense is None else F.relu(self.dense(x))
        return x.view(*obs.shape[: -self.image.dims], self.features)


def features_of(encoder: nn.Module) -> int:
    """Return the width of an encoder's output."""
    features = encoder.features
    assert isinstance(features, int)
    return features


def image_encoder(space: spaces.Space, kind: str, features: int | None) -> nn.Module:
    """Return the image encoder `kind`; auto chooses by the size of the images.

    If `features` is None it has no dense layer after the convolutions.
    """
    assert isinstance(space, spaces.Box)
    if kind == "mlp":
        return FloatVector(space)
    image = image_input(space)
    if kind == "auto":
        fits = min(image.shape[1:]) >= smallest_side(CONVOLUTIONS["nature"])
        kind = "nature" if fits else "impala"
    return Impala(image, features) if kind == "impala" else ConvNet(image, features, kind)
