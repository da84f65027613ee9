"""Values as distributions over fixed atoms (Bellemare et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor


def expected(logits: Tensor, atoms: Tensor) -> Tensor:
    """Mean values [...] of distributions [..., Z] over atoms [Z]."""
    return logits.softmax(-1) @ atoms


def projected(probabilities: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """The distribution [B, Z] of reward + discount x value, laid back onto the atoms [Z]: what
    falls between two of them is shared in proportion to nearness."""
    low, high, count = atoms[0], atoms[-1], len(atoms)
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(low, high)
    place = (moved - low) / (high - low) * (count - 1)
    nearness = (1 - (place.unsqueeze(-1) - torch.arange(count, device=atoms.device)).abs()).clamp(0)
    return (probabilities.unsqueeze(-1) * nearness).sum(-2)
