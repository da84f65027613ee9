"""Returns and advantages of windows of steps: pure functions on [T, B]."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor, discount: Tensor, mask: Tensor, value: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates [T, B] (Schulman et al. 2016); 0 on masked rows.

    `value` is [T + 1, B]. On the row after an episode's last step (its mask is 0) it is the value
    of the final observation: a truncated episode bootstraps from it, a terminated one has
    discount 0. The sum over later errors stops there.
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
    """Discounted sum of the rewards from each step to the end of its episode, [T, B].

    A masked row is an episode's final observation and stands for its value in `last_value`
    [T + 1, B] (0 where no value is known); so does the row after the last.
    """
    total = torch.empty_like(reward)
    running = last_value[-1]
    for t in reversed(range(len(reward))):
        running = torch.where(mask[t] > 0, reward[t] + gamma * discount[t] * running, last_value[t])
        total[t] = running
    return total * mask
