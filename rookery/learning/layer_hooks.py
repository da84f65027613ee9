"""Record histograms of layers, and outputs and gradients of those that callbacks watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm
from rookery.data.layer_records import Histogram, LayerTensors
from rookery.data.steps import Batch
from rookery.errors import nearest, require
from rookery.learning.activations import Activation

BINS = 30


def histogram_of(values: Tensor) -> Histogram:
    """Return a histogram over the range of the finite values."""
    values = values.detach().float().flatten()
    values = values[values.isfinite()]
    if not len(values):
        return Histogram(np.zeros(1), np.array([0.0, 0.0]), 0.0, 0.0)
    low, high = float(values.amin()), float(values.amax())
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(values, BINS, low, high).cpu().numpy()
    total, squares = float(values.sum()), float(values.square().sum())
    return Histogram(counts, np.linspace(low, high, BINS + 1), total, squares)


def layer_histograms(
    network: nn.Module, activations: Mapping[str, Activation]
) -> dict[str, Histogram]:
    """Return histograms of weights, gradients and activations."""
    found = {}
    for name, parameter in network.named_parameters():
        found[f"weights/{name}"] = histogram_of(parameter)
        if parameter.grad is not None:
            found[f"gradients/{name}"] = histogram_of(parameter.grad)
    for layer, activation in activations.items():
        found[f"activations/{layer}"] = histogram_of(activation.rows)
    return found


def check_layers(network: nn.Module, names: Sequence[str]) -> None:
    """Raise BadInput if a name is not that of a layer."""
    known = [name for name, _ in network.named_modules() if name]
    for name in names:
        require(
            name in known,
            f'callbacks: the network has no layer "{name}" to watch.{nearest(name, known)}'
            " 'rookery graph' lists the layers.",
        )


def watch_layers(
    algorithm: Algorithm, batch: Batch, names: Sequence[str]
) -> dict[str, LayerTensors]:
    """Compute the loss of a batch and its gradient, and return what the layers `names` had in both.
    The gradient is left in the parameters' `grad`, which an update empties first."""
    modules = dict(algorithm.network.named_modules())
    outputs: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}

    def recorder(name: str) -> Any:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if tensor.requires_grad and name not in outputs:
                outputs[name] = tensor.detach()
                tensor.register_hook(lambda gradient: gradients.setdefault(name, gradient))

        return record

    with ExitStack() as stack, torch.enable_grad():
        for name in names:
            stack.callback(modules[name].register_forward_hook(recorder(name)).remove)
        for parameter in algorithm.network.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        algorithm.loss(batch, algorithm.statistics(batch)).total.backward()
    return {
        name: LayerTensors(
            as_array(outputs.get(name)),
            as_array(gradients.get(name)),
            {
                key: parameter.grad.detach().cpu().numpy().copy()
                for key, parameter in modules[name].named_parameters()
                if parameter.grad is not None
            },
        )
        for name in names
    }


def as_array(tensor: Tensor | None) -> np.ndarray | None:
    """Return a copy on the CPU."""
    return None if tensor is None else tensor.detach().float().cpu().numpy().copy()
