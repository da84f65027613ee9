"""Epsilon-greedy exploration: schedules of epsilon, and the random choice."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rookery.data.steps import Lanes


def linear_epsilon(env_steps: int, start: float, end: float, steps: int) -> float:
    """Return epsilon, which falls from `start` to `end` over the first `steps` steps."""
    done = min(1.0, env_steps / steps) if steps else 1.0
    return start + done * (end - start)


def ladder(lanes: Lanes, base: float, power: float) -> Tensor:
    """Return base^(1 + power i / (N - 1)) for environment i of N (Horgan et al. 2018), [B]."""
    place = torch.arange(lanes.first, lanes.first + lanes.size, dtype=torch.float64)
    return (base ** (1 + power * place / max(1, lanes.total - 1))).float()


class EpsilonDraw(NamedTuple):
    """Random numbers for epsilon-greedy actions."""

    epsilon: Tensor
    """Probability of a random action in each lane, [B]."""
    numbers: Tensor
    """Uniform in [0, 1), [2, B]: whether to explore, and which action to take."""


def draw_epsilon(epsilon: Tensor, generator: torch.Generator | None) -> EpsilonDraw:
    """Return random numbers for lanes that explore with probability epsilon [B]."""
    numbers = torch.rand(2, len(epsilon), generator=generator, device=epsilon.device)
    return EpsilonDraw(epsilon, numbers)


def epsilon_greedy(q: Tensor, draw: EpsilonDraw | None, legal: Tensor | None = None) -> Tensor:
    """Return the best action for each row of values [B, A], or with probability epsilon any that is
    legal [B, A]; without a draw always the best."""
    best = q.argmax(-1)
    if draw is None:
        return best
    chance, which = draw.numbers.unbind()
    if legal is None:
        any_of = (which * q.shape[-1]).long()
    else:
        before = legal.cumsum(-1)
        wanted = (which * before[:, -1]).long()
        any_of = (before > wanted.unsqueeze(-1)).long().argmax(-1)
    return torch.where(chance < draw.epsilon, any_of, best)
