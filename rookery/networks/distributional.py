"""Categorical value distributions over fixed atoms (C51, Bellemare et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor


def expected_value(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the means [...] of distributions with logits [..., Z] over atoms [Z]."""
    return logits.softmax(-1) @ atoms


def project_onto_atoms(
    probabilities: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor
) -> Tensor:
    """Project the distribution [B, Z] of reward + discount x value onto the atoms [Z] (eq. 7).

    The probability of a value between two atoms is divided between them in proportion to
    nearness.
    """
    low, high, count = atoms[0], atoms[-1], len(atoms)
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(low, high)
    place = (moved - low) / (high - low) * (count - 1)
    nearness = (1 - (place.unsqueeze(-1) - torch.arange(count, device=atoms.device)).abs()).clamp(0)
    return (probabilities.unsqueeze(-1) * nearness).sum(-2)
