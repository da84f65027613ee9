"""From a config to the parts of a process, and what plays and learns with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from rookery.algorithms import Algorithm, algorithm_class
from rookery.algorithms.base import Collection
from rookery.config import RunConfig
from rookery.data.steps import Lanes
from rookery.envs import make_env, pool_of, statistics
from rookery.errors import require
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.learning.reduce import Reducer
from rookery.memory.replay import Replay
from rookery.runs import checkpoint
from rookery.runs.run import machine
from rookery.runtime import ranks
from rookery.runtime.compute import cores_each, device_of, is_small, useful_threads
from rookery.runtime.crew import Crew, Weights
from rookery.runtime.loop import Backend
from rookery.runtime.progress import Progress
from rookery.runtime.serial import Serial
from rookery.runtime.state import Parts, restore, spaces_of
from rookery.runtime.threads import Threads

Tell = Callable[[str, str], None]
"""Takes a line for the eye, and further lines for the log."""


class Built(NamedTuple):
    """The parts of a process, and what plays and learns with them."""

    parts: Parts
    backend: Backend


def build(
    config: RunConfig,
    reducer: Reducer,
    device: torch.device,
    saved: checkpoint.Checkpoint | None = None,
    tell: Tell = lambda line, details: None,
) -> Built:
    """The parts of one rank, gone on from `saved` if given."""
    step = saved.step if saved else 0
    network_seed, memory_seed = seeds(config.seed, reducer.rank, step, 0)
    actors = actor_count(config)
    cores = cores_each(ranks.on_this_host(reducer))
    env = make_env(
        config.environment, config.env, num_envs=config.envs, threads=engine_threads(config, cores)
    )
    # Actors on threads compute on one core each, and the learner on what they leave.
    left = max(1, cores - actors) if config.chosen_backend == "threads" else cores
    torch.set_num_threads(config.threads or useful_threads(spaces_of(env), left))
    torch.manual_seed(network_seed)
    algorithm = make_algorithm(config, env, device)
    memory = algorithm.memory(config.envs, actors, memory_seed)
    learner = Learner(algorithm, config.learner, reducer, device, config.precision, config.compile)
    parts = Parts(config, env, algorithm, memory, learner, reducer, Progress())
    if saved is not None:
        restore(parts, saved.tensors, saved.meta)
    if config.chosen_backend == "threads":
        return Built(parts, crew_of(parts, actors, cores, step, tell))
    collection = rank_share(algorithm.collection, reducer)
    lanes = Lanes(reducer.rank * config.envs, config.envs, reducer.world * config.envs)
    actor_seeds = seeds(config.seed, reducer.rank, step, 1)
    actor = Actor(env, algorithm, collection, device, *actor_seeds, lanes, pool_of(env))
    serial = Serial(parts, actor)
    if saved is not None:
        serial.restore(saved.tensors["random"])
    return Built(parts, serial)


def seeds(*of: int) -> tuple[int, int]:
    """Two seeds for a purpose: distinct for each rank, actor and sitting, since a resumed run must
    not replay its start."""
    first, second = np.random.SeedSequence(of).generate_state(2) >> 1
    return int(first), int(second)


def make_algorithm(config: RunConfig, env: Any, device: torch.device) -> Algorithm:
    """The algorithm for these environments, with a new network."""
    algorithm = algorithm_class(config.algorithm)(spaces_of(env), config.algo, config.net, device)
    require(
        algorithm.collection.episodes is None or not config.env.one_life,
        "env.one_life ends an episode with every life, and algo.episodes starts a new game for"
        " every batch of them; use algo.rollout_steps",
    )
    return algorithm


def actor_count(config: RunConfig) -> int:
    """How many actors this process has."""
    if config.chosen_backend != "threads":
        return 1
    return config.actors or int(machine()["cores"])


def engine_threads(config: RunConfig, cores: int) -> int:
    """Threads of each actor's environments."""
    return config.threads or max(1, cores // actor_count(config))


def crew_of(parts: Parts, actors: int, cores: int, step: int, tell: Tell) -> Threads:
    """The actors in threads, each with environments and a network of its own."""
    config = parts.config
    require(
        not statistics(parts.env),
        "env.normalize_obs and env.normalize_reward keep statistics that actors on threads do not"
        " share; use --backend serial",
    )
    # Networks for vectors compute for microseconds at a time. Threads that do so at once hand the
    # interpreter back and forth after every operation; taking turns they need not.
    small = is_small(spaces_of(parts.env))
    turn = threading.Lock() if small else None
    devices = [device_of(name) for name in config.act_device.split(",")]
    threads = engine_threads(config, cores)

    def make_actor(number: int, restart: int) -> Actor:
        env, device = parts.env, devices[number % len(devices)]
        if number or restart:
            env = make_env(config.environment, config.env, num_envs=config.envs, threads=threads)
        algorithm = make_algorithm(config, env, device)
        algorithm.network.to(device)
        lanes = Lanes(number * config.envs, config.envs, actors * config.envs)
        own = seeds(config.seed, number, step, 1 + restart)
        collection = algorithm.collection
        return Actor(env, algorithm, collection, device, *own, lanes, pool_of(env), turn)

    assert isinstance(parts.memory, Replay)
    weights = Weights(parts.learner.flat.values)
    return Threads(
        parts, Crew(actors, make_actor, parts.memory, weights, config.actor_restarts, tell)
    )


def rank_share(collection: Collection, reducer: Reducer) -> Collection:
    """What one rank collects: all ranks' episodes add up to what was asked for."""
    if collection.episodes is None:
        return collection
    require(
        collection.episodes >= reducer.world,
        f"algo.episodes={collection.episodes} is less than one for each of {reducer.world} ranks",
    )
    more = reducer.rank < collection.episodes % reducer.world
    return Collection(episodes=collection.episodes // reducer.world + more)
