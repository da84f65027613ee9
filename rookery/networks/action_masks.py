"""Masks of legal actions in the key "action_mask" of observations."""

from __future__ import annotations

import gymnasium.spaces as spaces
import numpy as np
from torch import Tensor

from rookery.data.tree import Tree
from rookery.errors import require

ACTION_MASK = "action_mask"
IMPOSSIBLE = -1e9
"""Logit of an illegal action: its probability is 0, and since the logit is finite, so is its
contribution to the entropy."""


class LegalActions:
    """Function from observations to the legal actions, bool [..., A]."""

    def __init__(self, stacked: bool):
        self.stacked = stacked
        """True if an observation holds the masks of several frames; the newest counts."""

    def __call__(self, obs: Tree) -> Tensor:
        mask = obs[ACTION_MASK][..., -1, :] if self.stacked else obs[ACTION_MASK]
        legal = mask.bool()
        # If no action is legal, as after a game's last move, all are: every distribution and every
        # maximum needs at least one action.
        return legal | ~legal.any(-1, keepdim=True)


def legal_actions_of(obs: spaces.Space, action: spaces.Space) -> LegalActions | None:
    """Return the LegalActions of observations with a mask, else None; raise for a bad mask."""
    if not has_mask(obs):
        return None
    mask = obs[ACTION_MASK]  # type: ignore[index]
    name = f'the observation\'s key "{ACTION_MASK}"'
    require(
        isinstance(action, spaces.Discrete),
        f"{name} needs a Discrete action space, got {action}; rename the key if it is not a mask"
        " of legal actions",
    )
    assert isinstance(action, spaces.Discrete)
    shape = tuple(mask.shape or ())
    require(
        isinstance(mask, spaces.MultiBinary | spaces.Box)
        and not np.issubdtype(mask.dtype, np.floating)
        and len(shape) in (1, 2)
        and shape[-1:] == (action.n,),
        f"{name} must be MultiBinary({action.n}) or an integer Box of that shape, one number per"
        f" action, 0 for illegal ones; got {mask}",
    )
    return LegalActions(len(shape) == 2)


def has_mask(obs: spaces.Space) -> bool:
    """True if a space has the key "action_mask"."""
    return isinstance(obs, spaces.Dict) and ACTION_MASK in obs.spaces


def without_action_mask(obs: spaces.Space) -> spaces.Space:
    """Return the observation space without the mask: what the network encodes."""
    if not has_mask(obs):
        return obs
    assert isinstance(obs, spaces.Dict)
    rest = {name: part for name, part in obs.spaces.items() if name != ACTION_MASK}
    require(rest, f'the observation contains only "{ACTION_MASK}": add a key for the state')
    return spaces.Dict(rest)


def mask_illegal(values: Tensor, legal: Tensor | None, lowest: float) -> Tensor:
    """Return values or logits [..., A] with `lowest` for illegal actions."""
    return values if legal is None else values.masked_fill(~legal, lowest)
