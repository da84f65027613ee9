"""Record the activations of a network, and measure them: dormant and saturated units, rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rookery.networks.encoders import ACTIVATIONS, Tanh
from rookery.networks.images import Image

DORMANT = 0.025
"""A unit is dormant if its mean absolute activation is at most this share of its layer's mean
(Sokar et al. 2023)."""
NEAR_LIMIT = 0.97
"""Size of a bounded activation, scaled to -1 to 1, from which on its gradient is below 6 %."""
SATURATED_ROWS = 0.95
"""A unit is saturated if it is near its limits in this share of the rows."""
RANK_SHARE = 0.99
"""The effective rank is the number of singular values that have this share of their sum (Kumar et
al. 2021)."""
RANK_ROWS = 128
ACTIVATION_KINDS = (
    *ACTIVATIONS.values(),
    *(nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.GELU),
)
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


class Activation(NamedTuple):
    """Outputs of a layer after its activation function."""

    rows: Tensor
    """[rows, units]; a unit of a convolution is a channel, and each of its positions is a row."""
    limits: tuple[float, float] | None
    """Lowest and highest value of a bounded activation function."""


class ActivationRecorder:
    """Records activations by layer, in the order in which they are computed, and the input of the
    network, while it is entered."""

    def __init__(self, network: nn.Module):
        self.network = network
        self.found: dict[str, Activation] = {}
        self.input: Tensor | None = None
        """Observations as the first layer gets them, [rows, components]."""
        self.hooks: list[Any] = []

    def __enter__(self) -> ActivationRecorder:
        layer, is_convolution = "", False
        for name, module in self.network.named_modules():
            hook = module.register_forward_hook
            if isinstance(module, Image):
                self.hooks.append(hook(self.note_image))
            if next(module.parameters(recurse=False), None) is not None:
                layer, is_convolution = name, isinstance(module, nn.Conv2d)
                self.hooks.append(hook(self.note_input))
            if isinstance(module, ACTIVATION_KINDS + RECURRENT):
                self.hooks.append(hook(self.recorder_of(layer, is_convolution)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def note_image(self, module: Image, args: Any, output: Tensor) -> None:
        """Forward hook of image inputs: pixels are scaled by the weights of the next layer."""
        if self.input is None:
            self.input = output.detach().flatten(1) * module.scale

    def note_input(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forward hook of layers with parameters."""
        x = args[0]
        if self.input is None and isinstance(x, Tensor) and x.is_floating_point():
            is_image = isinstance(module, nn.Conv2d)
            self.input = x.detach().flatten(1) if is_image else x.detach().reshape(-1, x.shape[-1])

    def recorder_of(self, layer: str, is_convolution: bool) -> Any:
        """Return the forward hook of the activation function of `layer`."""

        def record(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            values = (output[0] if isinstance(output, tuple) else output).detach()
            if is_convolution and values.dim() >= 4:
                values = values.movedim(-3, -1)
            rows = values.reshape(-1, values.shape[-1]).float()
            self.found[layer] = Activation(rows, limits_of(module))

        return record


def limits_of(module: nn.Module) -> tuple[float, float] | None:
    """Return the range of a bounded activation function; None if it is not bounded."""
    if isinstance(module, Tanh | nn.Tanh | nn.LSTM | nn.GRU | nn.RNN):
        return -1.0, 1.0
    return (0.0, 1.0) if isinstance(module, nn.Sigmoid) else None


def dormant_share(rows: Tensor) -> Tensor:
    """Return the share of dormant units: s_i = E|h_i| / mean_k E|h_k| <= 0.025, for activations
    [rows, units]. In a layer that returns zeros only all units are dormant."""
    sizes = rows.abs().mean(0)
    return (sizes <= DORMANT * sizes.mean()).float().mean()


def saturated_share(rows: Tensor, limits: tuple[float, float]) -> Tensor:
    """Return the share of units that are near one of their limits in most rows [rows, units]."""
    low, high = limits
    scaled = (2 * rows - (low + high)) / (high - low)
    return ((scaled.abs() > NEAR_LIMIT).float().mean(0) >= SATURATED_ROWS).float().mean()


def effective_rank(features: Tensor) -> int:
    """Return the least number of singular values of the features [rows, units] that have 99 % of
    their sum; 0 if all features are 0."""
    values = torch.linalg.svdvals(features[:RANK_ROWS])
    total = values.sum()
    if not bool(total > 0):
        return 0
    return int((values.cumsum(0) / total < RANK_SHARE).sum()) + 1
