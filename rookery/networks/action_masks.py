"""Legal actions: a part "action_mask" of an observation tells which may be taken now."""

from __future__ import annotations

import gymnasium.spaces as spaces
import numpy as np
from torch import Tensor

from rookery.data.tree import Tree
from rookery.errors import require

ACTION_MASK = "action_mask"
IMPOSSIBLE = -1e9
"""Logit of an action that may not be taken: its probability is 0 and, as this is finite, so is its
share of the entropy."""


class Legality:
    """From observations to the actions that may be taken, [..., A]."""

    def __init__(self, stacked: bool):
        self.stacked = stacked
        """Whether an observation has the masks of several frames, of which the newest counts."""

    def __call__(self, obs: Tree) -> Tensor:
        mask = obs[ACTION_MASK][..., -1, :] if self.stacked else obs[ACTION_MASK]
        legal = mask.bool()
        # Where nothing is, as after a game's last move, nothing is ruled out: no value and no
        # distribution is left without an action.
        return legal | ~legal.any(-1, keepdim=True)


def legality(obs: spaces.Space, action: spaces.Space) -> Legality | None:
    """What tells the legal actions, if the observations do; a mask that cannot is refused."""
    if not has_mask(obs):
        return None
    mask = obs[ACTION_MASK]  # type: ignore[index]
    told = f'the observation\'s part "{ACTION_MASK}"'
    require(
        isinstance(action, spaces.Discrete),
        f"{told} tells legal actions of a Discrete space, and actions are {action}; give it another"
        " name if it is something else",
    )
    assert isinstance(action, spaces.Discrete)
    shape = tuple(mask.shape or ())
    require(
        isinstance(mask, spaces.MultiBinary | spaces.Box)
        and not np.issubdtype(mask.dtype, np.floating)
        and len(shape) in (1, 2)
        and shape[-1:] == (action.n,),
        f"{told} is {mask}, and must be MultiBinary({action.n}) or a Box of whole numbers of that"
        " shape: one for each action, 0 where it is illegal",
    )
    return Legality(len(shape) == 2)


def has_mask(obs: spaces.Space) -> bool:
    """Whether a space has a part that tells legal actions."""
    return isinstance(obs, spaces.Dict) and ACTION_MASK in obs.spaces


def described(obs: spaces.Space) -> spaces.Space:
    """What of an observation describes the state: all but the mask."""
    if not has_mask(obs):
        return obs
    assert isinstance(obs, spaces.Dict)
    rest = {name: part for name, part in obs.spaces.items() if name != ACTION_MASK}
    require(rest, f'the observation is nothing but "{ACTION_MASK}": it describes no state')
    return spaces.Dict(rest)


def restricted(values: Tensor, legal: Tensor | None, lowest: float) -> Tensor:
    """Values or logits [..., A] of actions, `lowest` for those that may not be taken."""
    return values if legal is None else values.masked_fill(~legal, lowest)
