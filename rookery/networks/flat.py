"""Parameters of a module as views of one flat tensor, and gradients as views of another."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of `module`, moved into one vector.

    `values` is a leaf with `values.grad` set, so an optimizer over `[values]` updates the whole
    module at once. `buffer` is the gradient followed by `spare` free slots, so that one all-reduce
    sums the gradient and a few statistics.
    """

    def __init__(self, module: nn.Module, device: torch.device, spare: int = 0):
        module.to(device)
        parameters = list(module.parameters())
        size = sum(p.numel() for p in parameters)
        self.values = nn.Parameter(torch.empty(size, device=device))
        self.buffer = torch.zeros(size + spare, device=device)
        self.grad = self.buffer[:size]
        self.spare = self.buffer[size:]
        self.values.grad = self.grad
        start = 0
        with torch.no_grad():
            for parameter in parameters:
                end = start + parameter.numel()
                view = view_as(self.values.data[start:end], parameter)
                view.copy_(parameter)
                parameter.data = view
                parameter.grad = view_as(self.grad[start:end], parameter)
                start = end

    def copy_from(self, values: Tensor) -> None:
        """Overwrite every parameter with the flat vector `values`."""
        self.values.data.copy_(values)


def view_as(vector: Tensor, parameter: Tensor) -> Tensor:
    """Return a view of `vector` in the parameter's shape; convolution weights are channels-last
    in memory, like the activations."""
    if parameter.dim() == 4:
        out, channels, height, width = parameter.shape
        return vector.view(out, height, width, channels).permute(0, 3, 1, 2)
    return vector.view(parameter.shape)
