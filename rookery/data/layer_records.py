"""Records of a network's layers that callbacks get: histograms, outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # for the command line, which must start without NumPy
    import numpy as np


class Histogram(NamedTuple):
    """Counts of values between edges, with their moments."""

    counts: np.ndarray
    """[bins]"""
    edges: np.ndarray
    """[bins + 1]"""
    sum: float
    sum_of_squares: float


class LayerTensors(NamedTuple):
    """A layer in one update, before its step."""

    output: np.ndarray | None
    """Output of the forward pass; None if the layer was not called as a module."""
    output_gradient: np.ndarray | None
    """Gradient of the loss with respect to the output."""
    gradients: dict[str, np.ndarray]
    """Gradients of the layer's parameters by name."""


class LayerRecords(NamedTuple):
    """Histograms and tensors of an update since the last report."""

    updates: int
    """Number of updates before the one that was recorded."""
    histograms: dict[str, Histogram]
    """By "weights/NAME", "gradients/NAME" or "activations/LAYER"."""
    tensors: dict[str, LayerTensors]
    """By layer, for the layers that callbacks watch."""
