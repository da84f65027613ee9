"""Activations by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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


SMALL_TENSOR = 8192
"""Elements below which one call of tanh is faster than the four calls that replace it."""


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
