"""`Steps` and what is made of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from rookery.data.tree import Tree


class Steps(NamedTuple):
    """Rows of experience, every leaf [T, B, ...]."""

    obs: Tree
    """What the policy saw."""
    action: Tensor
    """What it did."""
    reward: Tensor
    """What it got; 0 on a reset row."""
    discount: Tensor
    """0 where this action terminated the episode, else 1; truncation keeps 1."""
    mask: Tensor
    """0 on the row whose action the environment ignored because it was resetting."""
    extra: dict[str, Any]
    """What the algorithm recorded while acting."""


class Segment(NamedTuple):
    """T rows as an actor collected them, and what stood after them."""

    steps: Steps
    next_obs: Tree
    """The observation after the last row, [B, ...]."""
    state: Tree
    """The recurrent state before the first row, [B, ...]; () without one."""
    next_state: Tree
    """The recurrent state before `next_obs`."""
    reward: Tensor
    """The reward before the first row, [B]; 0 at an episode's start."""


class Lanes(NamedTuple):
    """Which of all environments of a run an actor plays."""

    first: int
    size: int
    total: int


class Decision(NamedTuple):
    """What `Algorithm.act` answers for a batch of observations."""

    action: Tensor
    """In the form the algorithm learns from, [B, ...]."""
    env_action: Tensor
    """In the form the environment's action space asks for, [B, ...]."""
    state: Tree
    """The recurrent state after this observation; () without one."""
    extra: dict[str, Tensor]
    """What to record beside the step."""


class Batch(NamedTuple):
    """A window of steps to learn from."""

    steps: Steps
    state: Tree
    """The recurrent state before the first row; () without one."""
    keys: Tensor | None = None
    """Where the rows stand in the replay memory, for their new priorities."""
    weight: Tensor | None = None
    """Importance weights, [B]."""


class Loss(NamedTuple):
    """What a batch costs. All sums are over its rows divided by the statistics' count, so that
    losses, gradients and metrics of micro batches and of ranks add up to the whole batch's."""

    total: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor | None = None
