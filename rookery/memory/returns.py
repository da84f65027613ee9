"""Returns and advantages of windows of steps: pure functions on [T, B]."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


def gae(
    reward: Tensor, discount: Tensor, mask: Tensor, value: Tensor, gamma: float, lam: float
) -> Tensor:
    """Return generalised advantage estimates [T, B]; 0 on masked rows.

    A_t = sum_k (gamma lam)^k delta_{t+k} with delta_t = r_t + gamma V_{t+1} - V_t (Schulman et al.
    2016, eq. 16). `value` is [T + 1, B]. On the row after an episode's last step (its mask is 0) it
    is the value of the final observation: a truncated episode bootstraps from it, a terminated one
    has discount 0. The sum over later errors stops there.
    """
    delta = (reward + gamma * discount * value[1:] - value[:-1]) * mask
    decay = gamma * lam * discount * mask
    advantage = torch.empty_like(delta)
    # Rows are unbound once: indexing a tensor T times costs more than the arithmetic.
    running = torch.zeros_like(delta[0])
    rows = zip(delta.unbind(), decay.unbind(), advantage.unbind(), strict=True)
    for error, keep, out in reversed(list(rows)):
        running = torch.addcmul(error, keep, running, out=out)
    return advantage


def reward_to_go(
    reward: Tensor, discount: Tensor, mask: Tensor, last_value: Tensor, gamma: float
) -> Tensor:
    """Return the discounted sum of rewards from each step to the end of its episode, [T, B].

    `last_value` [T + 1, B] holds the value of the final observation at masked rows and at the row
    after the last (0 where no value is known).
    """
    total = torch.empty_like(reward)
    running = last_value[-1]
    for t in reversed(range(len(reward))):
        running = torch.where(mask[t] > 0, reward[t] + gamma * discount[t] * running, last_value[t])
        total[t] = running
    return total * mask


class NStep(NamedTuple):
    """n-step sums; every part is [T, B]."""

    reward: Any
    """Discounted sum of rewards."""
    discount: Any
    """Factor of the bootstrap value: gamma^k, or 0 where the episode terminated."""
    last: Any
    """Steps until the bootstrap observation: n, or fewer where the episode ended."""


def n_step(reward: Any, discount: Any, mask: Any, gamma: float, n: int) -> NStep:
    """Return n-step sums from each of the first T of T + n rows, tensors or numpy arrays.

    With them the target is sum_{k<n} gamma^k r_{t+k} + gamma^n V_{t+n}. A sum ends at a masked
    row, which holds the final observation, whose value counts unless the episode terminated. On a
    masked row itself the sum is empty.
    """
    count = len(mask) - n
    playing = last = mask[:count]
    total = playing * reward[:count]
    # A row where the sum has ended changes neither the sum nor the factor: 1 - playing is 1.
    factor = 1 - playing + gamma * playing * discount[:count]
    for k in range(1, n):
        rows = slice(k, k + count)
        playing = playing * mask[rows]
        total = total + factor * playing * reward[rows]
        factor = factor * (1 - playing + gamma * playing * discount[rows])
        last = last + playing
    return NStep(total, factor, last)


RESCALE_EPSILON = 1e-3


def rescale(value: Tensor) -> Tensor:
    """Compress large values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018)."""
    x = value.double()
    root = x.abs() / ((x.abs() + 1).sqrt() + 1)  # sqrt(|x| + 1) - 1, without cancellation
    return (x.sign() * root + RESCALE_EPSILON * x).to(value.dtype)


def unrescale(value: Tensor) -> Tensor:
    """Return the inverse of `rescale`."""
    x, eps = value.double(), RESCALE_EPSILON
    size = x.abs()
    # With s = sqrt(|h^-1(x)| + 1) the definition is the quadratic eps s^2 + s = |x| + 1 + eps.
    # d = s - 1 solves eps d^2 + (1 + 2 eps) d = |x|, and |h^-1(x)| = d (d + 2).
    linear = 1 + 2 * eps
    distance = 2 * size / (linear + (linear * linear + 4 * eps * size).sqrt())
    return (x.sign() * distance * (distance + 2)).to(value.dtype)
