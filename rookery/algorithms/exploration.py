"""Trying actions that do not look best: how often, and how."""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.data.steps import Lanes


def linear_epsilon(env_steps: int, start: float, end: float, steps: int) -> float:
    """From `start` to `end` over the first `steps` steps of the run."""
    done = min(1.0, env_steps / steps) if steps else 1.0
    return start + done * (end - start)


def ladder(lanes: Lanes, base: float, power: float) -> Tensor:
    """base^(1 + power i / (N - 1)) for environment i of N (Horgan et al. 2018), [B]."""
    place = torch.arange(lanes.first, lanes.first + lanes.size, dtype=torch.float64)
    return (base ** (1 + power * place / max(1, lanes.total - 1))).float()


def draw_for(epsilon: Tensor | None, generator: torch.Generator | None) -> Tensor | None:
    """The random numbers [2, B] that `epsilon_greedy` takes; none without epsilon [B]."""
    if epsilon is None:
        return None
    return torch.rand(2, len(epsilon), generator=generator, device=epsilon.device)


def epsilon_greedy(
    q: Tensor, epsilon: Tensor | None, draw: Tensor | None, legal: Tensor | None = None
) -> Tensor:
    """The best action for each row of values [B, A], or with probability epsilon [B] any that is
    legal [B, A], by numbers drawn evenly from [0, 1), [2, B]."""
    best = q.argmax(-1)
    if epsilon is None or draw is None:
        return best
    chance, which = draw.unbind()
    if legal is None:
        any_of = (which * q.shape[-1]).long()
    else:
        before = legal.cumsum(-1)
        wanted = (which * before[:, -1]).long()
        any_of = (before > wanted.unsqueeze(-1)).long().argmax(-1)
    return torch.where(chance < epsilon, any_of, best)
