"""A dense layer with learned noise in its weights (Fortunato et al. 2018)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """y = (w + s_w * e_w) x + b + s_b * e_b (eq. 9) with factorised noise from `reset_noise`.

    e_w = f(e_out) f(e_in)^T and e_b = f(e_out) with f(x) = sign(x) sqrt(|x|) (eqs. 10 and 11).
    After `zero_noise` it is the dense layer of the means.
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
