"""From a config to the parts of a process, and what plays and learns with them."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import NamedTuple

import torch

from rookery.backends.actor_threads import Crew, Weights
from rookery.backends.base import Backend, Tell
from rookery.backends.components import Parts, restore, spaces_of
from rookery.backends.factory import is_small, make_algorithm, seeds, share_of, useful_threads
from rookery.backends.progress import Progress
from rookery.backends.ranks import join as ranks
from rookery.backends.serial import Serial
from rookery.backends.threads import Threads
from rookery.config import RunConfig
from rookery.data.steps import Lanes
from rookery.envs import make_env, pool_of, statistics, turned
from rookery.errors import require
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.learning.reduce import Reducer
from rookery.machine import (
    cores,
    cores_each,
    device_of,
    lower_priority_of_new_threads,
)
from rookery.memory import budget
from rookery.memory.replay import Replay
from rookery.runs import checkpoint


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
    if config.chosen_backend == "ray":
        from rookery.backends.ray.start import on_cluster

        return Built(*on_cluster(config, saved, tell))
    step = saved.step if saved else 0
    network_seed, memory_seed = seeds(config.seed, reducer.rank, step, 0)
    actors = actor_count(config)
    ranks_here = ranks.on_this_host(reducer)
    cores = cores_each(ranks_here)
    lanes = Lanes(reducer.rank * config.envs, config.envs, reducer.world * config.envs)
    threads = engine_threads(config, cores)
    name = turned(config.environment, lanes.first)
    beside = config.chosen_backend == "threads"
    with lower_priority_of_new_threads() if beside else nullcontext():
        env = make_env(name, config.env, num_envs=config.envs, threads=threads)
    # Actors on threads compute on one core each, and the learner on what they leave.
    left = max(1, cores - actors) if beside else cores
    torch.set_num_threads(config.threads or useful_threads(spaces_of(env), left))
    torch.manual_seed(network_seed)
    algorithm = make_algorithm(config, spaces_of(env), device)
    memory = algorithm.memory(config.envs, actors, memory_seed)
    if isinstance(memory, Replay):
        budget.check_fits(memory.nbytes(), memory.ring.lanes * memory.ring.rows, ranks_here)
    learner = Learner(algorithm, config.learner, reducer, device, config.precision, config.compile)
    parts = Parts(config, env, algorithm, memory, learner, reducer, Progress())
    if saved is not None:
        restore(parts, saved.tensors, saved.meta)
    if beside:
        assert isinstance(memory, Replay)
        return Built(parts, crew_of(parts, memory, actors, cores, step, tell))
    collection = share_of(algorithm.collection, reducer.rank, reducer.world)
    actor_seeds = seeds(config.seed, reducer.rank, step, 1)
    actor = Actor(env, algorithm, collection, device, *actor_seeds, lanes, pool_of(env))
    serial = Serial(parts, memory, actor)
    if saved is not None:
        serial.restore(saved.tensors["random"])
    return Built(parts, serial)


def actor_count(config: RunConfig) -> int:
    """How many actors this process has."""
    if config.chosen_backend != "threads":
        return 1
    return cores() if config.actors == "auto" else config.actors


def engine_threads(config: RunConfig, cores: int) -> int:
    """Threads of each actor's environments."""
    return config.threads or max(1, cores // actor_count(config))


def crew_of(
    parts: Parts, memory: Replay, actors: int, cores: int, step: int, tell: Tell
) -> Threads:
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
        lanes = Lanes(number * config.envs, config.envs, actors * config.envs)
        if number or restart:
            name = turned(config.environment, lanes.first)
            env = make_env(name, config.env, num_envs=config.envs, threads=threads)
        algorithm = make_algorithm(config, spaces_of(env), device)
        algorithm.network.to(device)
        own = seeds(config.seed, number, step, 1 + restart)
        collection = algorithm.collection
        return Actor(env, algorithm, collection, device, *own, lanes, pool_of(env), turn)

    weights = Weights(parts.learner.flat.values)
    with lower_priority_of_new_threads():
        crew = Crew(actors, make_actor, memory, weights, config.actor_restarts, tell)
    return Threads(parts, crew)
