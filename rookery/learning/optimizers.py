"""Optimizers over one flat vector: a few operations a step, and state that is plain tensors.

torch.optim computes the same, but on first use it loads torch's compiler, some 800 modules that
the first update would wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from rookery.algorithms.base import OptimizerConfig

ADAM_BETAS = (0.9, 0.999)
RMSPROP_DECAY = 0.95


def learning_rate_at(config: OptimizerConfig, done: float) -> float:
    """Return the learning rate after the share `done` of the run, 0 to 1."""
    return config.learning_rate * (max(0.0, 1 - done) if config.anneal else 1.0)


class Optimizer(ABC):
    """Steps `values` along `values.grad`, divided by `divisor` where there is one."""

    def __init__(self, values: Tensor, config: OptimizerConfig):
        self.values = values
        self.learning_rate, self.epsilon = config.learning_rate, config.epsilon
        self.state = {"mean": torch.zeros_like(values), "square": torch.zeros_like(values)}
        """State between steps, by name."""

    @abstractmethod
    def step(self, divisor: Tensor | None = None) -> None: ...


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015)."""

    def __init__(self, values: Tensor, config: OptimizerConfig):
        super().__init__(values, config)
        self.detached = values.detach()
        self.state["step"] = torch.zeros((), device=values.device)

    def step(self, divisor: Tensor | None = None) -> None:
        grad = self.values.grad
        assert grad is not None
        # On the CPU by NumPy, in a tenth of torch's time.
        count: Any = self.state["step"]
        count = count.numpy() if count.device.type == "cpu" else count
        count += 1
        # One pass over memory instead of seven; what torch.optim.Adam(fused=True) calls.
        torch._fused_adam_(
            [self.detached],
            [grad],
            [self.state["mean"]],
            [self.state["square"]],
            [],
            [self.state["step"]],
            lr=self.learning_rate,
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )


class RmsProp(Optimizer):
    """Centered RMSProp (Graves 2013), as used by DQN."""

    @torch.no_grad()
    def step(self, divisor: Tensor | None = None) -> None:
        grad = divided(self.values.grad, divisor)
        mean, square = self.state["mean"], self.state["square"]
        mean.lerp_(grad, 1 - RMSPROP_DECAY)
        square.mul_(RMSPROP_DECAY).addcmul_(grad, grad, value=1 - RMSPROP_DECAY)
        # The variance of a constant gradient is 0, and rounding may make it negative.
        variance = square.addcmul(mean, mean, value=-1).clamp_(min=0)
        scale = variance.sqrt_().add_(self.epsilon)
        self.values.addcdiv_(grad, scale, value=-self.learning_rate)


class Sgd(Optimizer):
    """Plain gradient descent."""

    def __init__(self, values: Tensor, config: OptimizerConfig):
        super().__init__(values, config)
        self.state = {}

    @torch.no_grad()
    def step(self, divisor: Tensor | None = None) -> None:
        self.values.add_(divided(self.values.grad, divisor), alpha=-self.learning_rate)


def divided(grad: Tensor | None, divisor: Tensor | None) -> Tensor:
    """Divide the gradient by the divisor in place, and return it."""
    assert grad is not None
    return grad if divisor is None else grad.div_(divisor)


def make_optimizer(values: Tensor, config: OptimizerConfig) -> Optimizer:
    """Return the optimizer of a config."""
    kinds: dict[str, type[Optimizer]] = {"adam": Adam, "rmsprop": RmsProp, "sgd": Sgd}
    return kinds[config.optimizer](values, config)
