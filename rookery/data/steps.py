"""`Steps`, the rows of experience, and the tuples that carry them between components; episodes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from rookery.data.tree import Tree, map_batch, tree_map


class Steps(NamedTuple):
    """Rows of experience, every leaf [T, B, ...]."""

    obs: Tree
    """Observation that the policy acted on."""
    action: Tensor
    """Action in the form the algorithm learns from."""
    reward: Tensor
    """Reward of the action; 0 on a reset row."""
    discount: Tensor
    """0 where this action terminated the episode, else 1; truncation keeps 1."""
    mask: Tensor
    """0 on the row whose action the environment ignored because it was resetting."""
    extra: dict[str, Any]
    """Values that the algorithm recorded while acting, e.g. log-probabilities."""


class Segment(NamedTuple):
    """T rows that an actor collected, with the observation and states around them."""

    steps: Steps
    next_obs: Tree
    """The observation after the last row, [B, ...]."""
    state: Tree
    """The recurrent state before the first row, [B, ...]; () without one."""
    next_state: Tree
    """The recurrent state before `next_obs`."""
    reward: Tensor
    """The reward before the first row, [B]; 0 at an episode's start."""


class FinishedEpisode(NamedTuple):
    """A whole episode of the environment, also where a lost life ends those of the learner."""

    episode_return: float
    """Sum of the raw rewards."""
    length: int
    """Agent steps without reset rows."""
    truncated: bool
    """True if a time limit ended it rather than the environment; False if both did."""


class Lanes(NamedTuple):
    """An actor's environments [first, first + size) among the `total` of a run."""

    first: int
    size: int
    total: int


class Decision(NamedTuple):
    """Result of `Algorithm.choose` for a batch of observations."""

    action: Tensor
    """Actions in the form the algorithm learns from, [B, ...]."""
    env_action: Tensor
    """Actions in the environment's action space, [B, ...]."""
    state: Tree
    """The recurrent state after this observation; () without one."""
    extra: dict[str, Tensor]
    """Values to record with the step, in `Steps.extra`."""


class Batch(NamedTuple):
    """A window of steps to learn from."""

    steps: Steps
    state: Tree
    """The recurrent state before the first row; () without one."""
    keys: Tensor | None = None
    """Identifiers of the windows in the replay memory, to update their priorities."""
    weight: Tensor | None = None
    """Importance weights, [B]."""

    def lanes(self, index: Tensor | slice) -> Batch:
        """Return some of the lanes, as a batch."""
        return Batch(
            map_batch(self.steps, index),
            tree_map(lambda x: x[index], self.state),
            None if self.keys is None else self.keys[index],
            None if self.weight is None else self.weight[index],
        )


class Loss(NamedTuple):
    """Loss of a batch.

    Invariant: every sum over rows is divided by the count in the statistics of the whole batch,
    so that losses, gradients and metrics of micro-batches and of ranks add up to the whole.
    """

    total: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor | None = None
    """New priorities of the windows, [B]; None if the memory uses none."""
