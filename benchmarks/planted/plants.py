"""Faults in algorithms, networks and backends: each a context manager that replaces one function of
the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algorithms import ppo
from rookery.algorithms.off_policy import ReplayAlgorithm
from rookery.backends import factory
from rookery.backends.common import ActorWithWeights
from rookery.envs.wrappers import normalize
from rookery.learning.actor import Actor, StepRow
from rookery.memory.distributions import Floats, Indices, Prioritized
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.encoders import Mlp
from rookery.networks.images import Image

DEAD_BIAS = -10.0
"""Bias with which a ReLU gets no positive input from normalised observations."""
WRONG_UNITS = 1000.0
"""Factor between the deviations of observations and those they are divided by."""


@contextmanager
def after_init(owner: type[Any], change: Callable[[Any], None]) -> Iterator[None]:
    """Call `change` with every new object of a class."""
    init = owner.__init__

    @wraps(init)
    def changed(self: Any, *args: Any, **settings: Any) -> None:
        init(self, *args, **settings)
        change(self)

    with patch.object(owner, "__init__", changed):
        yield


@contextmanager
def discounts(change: Callable[[Actor, StepRow], np.ndarray]) -> Iterator[None]:
    """Replace the discounts of every row that actors collect, False where an episode ended."""
    step = Actor.step

    def changed(self: Actor, counted: np.ndarray | None = None) -> StepRow:
        row = step(self, counted)
        return row._replace(discount=change(self, row))

    with patch.object(Actor, "step", changed):
        yield


def termination_as_truncation() -> Any:
    """Bootstrap from the last observation of every episode."""
    return discounts(lambda actor, row: np.ones_like(row.discount))


def truncation_as_termination() -> Any:
    """Bootstrap from the last observation of no episode."""
    return discounts(lambda actor, row: ~actor.resetting)


def target_never_updated() -> Any:
    """Keep the target network as it was made."""
    return patch.object(ReplayAlgorithm, "after_update", lambda self, updates: None)


@contextmanager
def policy_loss_detached() -> Iterator[None]:
    """Compute PPO's objective from a ratio without a gradient."""
    objective = ppo.clipped_objective

    def detached(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
        return objective(ratio.detach(), advantage, clip)

    with patch.object(ppo, "clipped_objective", detached):
        yield


def dead_units() -> Any:
    """Give every hidden unit a bias that no input of normal size exceeds."""

    def kill(network: nn.Module) -> None:
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                nn.init.constant_(layer.bias, DEAD_BIAS)

    return after_init(Mlp, kill)


def pixels_not_scaled() -> Any:
    """Give the network pixels of 0 to 255 instead of 0 to 1."""

    def unscale(image: Image) -> None:
        image.scale = 1.0

    return after_init(Image, unscale)


@contextmanager
def wrong_statistics() -> Iterator[None]:
    """Divide observations by the deviation of the same ones in other units."""
    right = normalize.standardised

    def wrong(value: Any, moments: normalize.RunningMoments) -> Any:
        return right(value, moments) / np.float32(WRONG_UNITS)

    with patch.object(normalize, "standardised", wrong):
        yield


@contextmanager
def stale_actors() -> Iterator[None]:
    """Let actors play with the first weights that they get."""
    load = ActorWithWeights.load

    def load_once(self: ActorWithWeights, version: int, values: Tensor) -> None:
        if self.version < 0:
            load(self, version, values)

    with patch.object(ActorWithWeights, "load", load_once):
        yield


@contextmanager
def no_importance_weights() -> Iterator[None]:
    """Draw by priorities, with a weight of 1 for every window."""
    draw = Prioritized.draw

    def unweighted(
        self: Prioritized, count: int, generator: torch.Generator
    ) -> tuple[Indices, Floats]:
        index, weight = draw(self, count, generator)
        return index, np.ones_like(weight)

    with patch.object(Prioritized, "draw", unweighted):
        yield


def frozen_head() -> Any:
    """Give the policy's last layer no gradient."""

    def freeze(network: ActorCritic) -> None:
        network.head.requires_grad_(False)

    return after_init(ActorCritic, freeze)


@contextmanager
def equal_seeds() -> Iterator[None]:
    """Give every rank and actor the seeds of the first."""
    seeds = factory.seeds

    def of_first(seed: int, number: int, *rest: int) -> tuple[int, int]:
        return seeds(seed, 0, *rest)

    with patch.object(factory, "seeds", of_first):
        yield
