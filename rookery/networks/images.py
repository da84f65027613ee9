"""Image observations: recognition of their spaces, and conversion to inputs of convolutions."""

from __future__ import annotations

from typing import Protocol

import gymnasium.spaces as spaces
import numpy as np
import torch
from torch import Tensor, nn

LEAST_BOARD = 8
"""Shortest side of a uint8 array [H, W] that counts as a board."""
MAX_IMAGE_CODES = 16
"""An array [H, W] with larger values than this is a grey image, not a board."""


class ImageInput(Protocol):
    """Function from observations with `dims` trailing axes to floats [N, *shape] in channels-last
    memory; `shape` is channels, height, width. Multiplied by `scale` they lie in 0..1."""

    dims: int
    shape: tuple[int, int, int]
    scale: float

    def __call__(self, obs: Tensor) -> Tensor: ...


class Image(nn.Module):
    """A uint8 image [..., C, H, W], [..., H, W, C], [..., H, W] or a stack of colour frames
    [..., S, H, W, C] as floats, [N, channels, H, W] in channels-last memory."""

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


def image_input(space: spaces.Box) -> ImageInput:
    """Return the conversion of images or boards to inputs of convolutions."""
    highest = highest_of(space)
    if len(space.shape) == 2 and 1 <= highest <= MAX_IMAGE_CODES:
        return Board(space.shape, highest)
    return Image(space.shape, highest)


def highest_of(space: spaces.Box) -> int:
    """Return the largest value of a uint8 space."""
    return int(space.high.max())


def is_image(space: spaces.Space) -> bool:
    """True if a space contains uint8 images, or boards [H, W]."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    board = len(space.shape) == 2 and min(space.shape) >= LEAST_BOARD
    return board or len(space.shape) in (3, 4)


def has_images(space: spaces.Space) -> bool:
    """True if any part of an observation space is an image."""
    if isinstance(space, spaces.Dict):
        return any(has_images(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(has_images(part) for part in space.spaces)
    return is_image(space)
