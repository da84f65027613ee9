"""Encoders of image observations: conversion to floats, and convolutions."""

from __future__ import annotations

from itertools import islice

import gymnasium.spaces as spaces
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.errors import require
from rookery.networks.encoders import initialise, orthogonal_linear

MAX_IMAGE_CODES = 16
"""An array [H, W] with larger values than this is a grey image, not a board."""

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


class Image(nn.Module):
    """A uint8 image [..., C, H, W], [..., H, W, C], [..., H, W] or a stack of colour frames
    [..., S, H, W, C] as floats, [N, *shape] in channels-last memory; `shape` is channels, height,
    width. Multiplied by `scale` they lie in 0..1."""

    def __init__(self, shape: tuple[int, ...], highest: int = 255):
        super().__init__()
        self.dims = len(shape)
        self.scale = 1 / max(highest, 1)
        self.stacked_colour = len(shape) == 4
        self.channels_first = len(shape) == 3 and shape[0] < min(shape[1], shape[2])
        if self.stacked_colour:
            stack, height, width, colours = shape
            self.shape = (stack * colours, height, width)
        elif self.channels_first:
            self.shape = (shape[0], shape[1], shape[2])
        else:
            self.shape = (shape[2] if len(shape) == 3 else 1, shape[0], shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.reshape(-1, *obs.shape[-self.dims :])
        if self.stacked_colour:
            x = x.permute(0, 1, 4, 2, 3).flatten(1, 2)
        elif self.dims == 2:
            x = x.unsqueeze(1)
        elif not self.channels_first:
            x = x.permute(0, 3, 1, 2)
        return channels_last(x)


def channels_last(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] as floats in channels-last memory."""
    if x.stride(1) == 1 or torch.compiler.is_compiling():
        return x.to(torch.float32, memory_format=torch.channels_last)
    # Copying channel by channel takes a fifth of the time of torch's conversion.
    floats = torch.empty(x.shape, device=x.device, memory_format=torch.channels_last)
    for channel in range(x.shape[1]):
        floats[:, channel] = x[:, channel]
    return floats


class Board(nn.Module):
    """A board of codes [..., H, W] as one plane per code except 0, [N, highest, H, W]: codes are
    categories, not amounts."""

    codes: Tensor
    scale = 1.0

    def __init__(self, shape: tuple[int, ...], highest: int):
        super().__init__()
        self.dims = 2
        self.shape = (highest, shape[0], shape[1])
        self.register_buffer(
            "codes", torch.arange(1, highest + 1, dtype=torch.uint8), persistent=False
        )

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.reshape(-1, *obs.shape[-2:]).unsqueeze(-1)
        return (x == self.codes).permute(0, 3, 1, 2).float()


ImageInput = Image | Board


def image_input(space: spaces.Box) -> ImageInput:
    """Return the conversion of images or boards to inputs of convolutions."""
    highest = int(space.high.max())
    if len(space.shape) == 2 and 1 <= highest <= MAX_IMAGE_CODES:
        return Board(space.shape, highest)
    return Image(space.shape, highest)


def smallest_side(layers: Convolutions) -> int:
    """Return the side of the smallest image of which convolutions without padding leave a pixel."""
    size = 1
    for _, kernel, stride in reversed(layers):
        size = (size - 1) * stride + kernel
    return size


class ImageNetwork(nn.Module):
    """Convolutional layers, then a dense layer; none if `features` is None."""

    features: int

    def __init__(self, image: ImageInput):
        super().__init__()
        self.image = image

    def add_dense(self, layers: nn.Sequential, features: int | None) -> None:
        """Add the dense layer after the convolutional `layers`."""
        with torch.no_grad():
            flat = layers(torch.zeros(1, *self.image.shape)).numel()
        self.dense = None if features is None else orthogonal_linear(flat, features)
        self.activation = nn.ReLU()
        """After the dense layer."""
        self.features = features or flat

    def encode(self, layers: nn.Sequential, obs: Tensor) -> Tensor:
        """Return the features of images. The weights of the first convolution are scaled instead of
        the pixels, since there are fewer of them."""
        first = layers[0]
        assert isinstance(first, nn.Conv2d)
        weight = first.weight if self.image.scale == 1 else first.weight * self.image.scale
        x = F.conv2d(self.image(obs), weight, first.bias, first.stride, first.padding)
        for layer in islice(layers, 1, None):
            x = layer(x)
        # Flatten in memory order (H, W, C), so that channels-last needs no copy.
        x = x.permute(0, 2, 3, 1).flatten(1)
        x = x if self.dense is None else self.activation(self.dense(x))
        return x.view(*obs.shape[: -self.image.dims], self.features)


class ConvNet(ImageNetwork):
    """Convolutions without padding."""

    def __init__(self, image: ImageInput, features: int | None, name: str):
        super().__init__(image)
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
        self.add_dense(self.convolutions, features)

    def forward(self, obs: Tensor) -> Tensor:
        return self.encode(self.convolutions, obs)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = initialise(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = initialise(nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Impala(ImageNetwork):
    """The residual network of the IMPALA paper (Espeholt et al. 2018)."""

    def __init__(self, image: ImageInput, features: int | None):
        super().__init__(image)
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
        self.stages = nn.Sequential(*stages, nn.ReLU())
        self.add_dense(self.stages, features)

    def forward(self, obs: Tensor) -> Tensor:
        return self.encode(self.stages, obs)


def image_encoder(space: spaces.Box, kind: str, features: int | None) -> nn.Module:
    """Return the image encoder `kind`; auto chooses by the size of the images.

    If `features` is None it has no dense layer after the convolutions.
    """
    image = image_input(space)
    if kind == "auto":
        fits = min(image.shape[1:]) >= smallest_side(CONVOLUTIONS["nature"])
        kind = "nature" if fits else "impala"
    return Impala(image, features) if kind == "impala" else ConvNet(image, features, kind)
