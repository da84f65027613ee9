"""Checks of an environment's timing: rewards and observations must belong to the step that returns
them. Guesses from the starts of episodes, where what comes late leaves a gap."""

from __future__ import annotations

import numpy as np

from rookery.diagnostics.inspection_checks import FEW_EPISODES, CheckOutcome, Unchecked, check
from rookery.diagnostics.inspection_plays import Evidence, Play
from rookery.envs.spaces import Array

BY_CHANCE = 1e-4
"""Probability below which first rewards of 0 are not taken for chance."""
SELDOM = 0.05
"""Share of steps, beside the first of episodes, whose observation may equal the one before."""


def episode_starts(play: Play, rows: int) -> Array:
    """Return row and lane of the first actions of episodes, [N, 2], of which the next row also
    belongs to the episode and lies below `rows`."""
    first = np.zeros((rows, play.reward.shape[1]), bool)
    first[0] = True
    first[1:] = play.resetting[: rows - 1]
    first[:-1] &= ~play.resetting[1:rows]
    first[-1] = False
    return np.argwhere(first & ~play.resetting[:rows])


@check(
    "late_reward",
    "warning",
    "return the reward of an action from the step that takes it; if the first action of an"
    " episode cannot be paid, it is right as it is",
)
def late_reward(e: Evidence) -> CheckOutcome:
    """The first step of an episode must be able to pay if the second is."""
    play = e.free
    starts = episode_starts(play, play.rows) if play.rows else np.empty((0, 2), int)
    if len(starts) < FEW_EPISODES:
        return Unchecked(f"fewer than {FEW_EPISODES} episodes of two steps began")
    row, lane = starts.T
    if np.any(play.reward[row, lane] != 0):
        return None
    second = float(np.mean(play.reward[row + 1, lane] != 0))
    # If first steps paid as often as second ones, all would pay 0 with this probability.
    if (1 - second) ** len(starts) >= BY_CHANCE:
        return None
    return (
        f"the first step of all {len(starts)} episodes pays 0, and the second of {second:.0%} does"
        " not: rewards seem to come one step late, and the last one of an episode is lost"
    )


@check(
    "late_observation",
    "warning",
    "return the observation after the action, not the one that was kept from before it",
)
def late_observation(e: Evidence) -> CheckOutcome:
    """The first action of an episode must not leave the observation as it was, if others do not."""
    play = e.free
    rows = min([play.rows, *(len(leaf) - 1 for leaf in play.obs.values())])
    starts = episode_starts(play, rows) if rows > 0 else np.empty((0, 2), int)
    if len(starts) < FEW_EPISODES:
        return Unchecked(f"fewer than {FEW_EPISODES} episodes of two steps began")
    same = np.ones((rows, play.reward.shape[1]), bool)
    for leaf in play.obs.values():
        rest = tuple(range(2, leaf.ndim))
        same &= (leaf[1 : rows + 1] == leaf[:rows]).all(axis=rest)
    row, lane = starts.T
    others = ~play.resetting[:rows]
    others[row, lane] = False
    if not same[row, lane].all() or same[others].mean() > SELDOM:
        return None
    return (
        f"after the first action of all {len(starts)} episodes the observation is the same as"
        " before, and later ones change it: observations seem to come one step late"
    )
