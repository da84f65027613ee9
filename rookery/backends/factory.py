"""What every process of a run makes of its config."""

from __future__ import annotations

import numpy as np
import torch

from rookery.algorithms import Algorithm, algorithm_class
from rookery.algorithms.base import Collection, Spaces
from rookery.config import RunConfig
from rookery.errors import require
from rookery.networks.images import has_images


def seeds(*of: int) -> tuple[int, int]:
    """Two seeds for a purpose: distinct for each rank, actor and sitting, since a resumed run must
    not replay its start."""
    first, second = np.random.SeedSequence(of).generate_state(2) >> 1
    return int(first), int(second)


def make_algorithm(config: RunConfig, spaces: Spaces, device: torch.device) -> Algorithm:
    """The algorithm for environments of these spaces, with a new network."""
    algorithm = algorithm_class(config.algorithm)(spaces, config.algo, config.net, device)
    algorithm.trace = config.learner.trace
    require(
        algorithm.collection.episodes is None or not config.env.one_life,
        "env.one_life ends an episode with every life, and algo.episodes starts a new game for"
        " every batch of them; use algo.rollout_steps",
    )
    return algorithm


def share_of(collection: Collection, rank: int, world: int) -> Collection:
    """What one of several actors collects: their episodes add up to what was asked for."""
    if collection.episodes is None:
        return collection
    require(
        collection.episodes >= world,
        f"algo.episodes={collection.episodes} is less than one for each of {world} actors",
    )
    more = rank < collection.episodes % world
    return Collection(episodes=collection.episodes // world + more)


def is_small(spaces: Spaces) -> bool:
    """True if observations have no images: calling such a network costs more than its products."""
    return not has_images(spaces.obs)


def useful_threads(spaces: Spaces, cores: int) -> int:
    """Return how many threads make the network faster: one for small networks, else all cores."""
    return 1 if is_small(spaces) else cores
