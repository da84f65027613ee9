"""Build algorithm, actor, learner and backend from a RunConfig: once, for all backends."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rookery.algorithms import Algorithm, algorithm_class
from rookery.algorithms.base import Collection, Spaces
from rookery.backends.base import Backend, Log
from rookery.backends.common import load_normalizer
from rookery.backends.serial import Serial
from rookery.backends.threads import Threads
from rookery.config import RunConfig
from rookery.data.steps import Lanes
from rookery.envs import (
    frame_stack_of,
    make_env,
    normalizer_of,
    pool_of,
    registered,
    statistics,
    turned,
)
from rookery.envs.wrappers.observation_record import record_observations
from rookery.errors import require
from rookery.learning.actor import Actor
from rookery.learning.diagnosis import DiagnosisSpec
from rookery.learning.learner import Learner
from rookery.learning.reduce import Reducer
from rookery.machine import cores, cores_each, device_of, lower_priority_of_new_threads
from rookery.memory import budget
from rookery.memory.replay import Replay
from rookery.networks.build import has_images
from rookery.runs.checkpoint import Checkpoint


def make_backend(
    config: RunConfig,
    reducer: Reducer,
    device: torch.device,
    saved: Checkpoint | None = None,
    log: Log = lambda line, details: None,
) -> Backend:
    """Return the backend of this process, restored from `saved` if given."""
    if config.chosen_backend == "ray":
        return make_driver(config, saved, log)
    step = saved.step if saved else 0
    if config.chosen_backend == "threads":
        backend: Backend = make_threads(config, reducer, device, step, log)
    else:
        backend = make_serial(config, reducer, device, step, saved)
    if saved is not None:
        backend.restore(saved)
    return backend


def make_serial(
    config: RunConfig, reducer: Reducer, device: torch.device, step: int, saved: Checkpoint | None
) -> Serial:
    """Return the backend `serial`, or a rank of `ranks`, that starts at `step`."""
    rank, world = reducer.rank, reducer.world
    host = socket.gethostname()
    ranks_here = reducer.gather(host).count(host)
    own_cores = cores_each(ranks_here)
    env = make_actor_env(config, rank, config.threads or own_cores)
    torch.set_num_threads(config.threads or useful_threads(spaces_of(env), own_cores))
    network_seed, memory_seed = seeds(config.seed, rank, step, 0)
    learner = make_learner(config, spaces_of(env), reducer, device, network_seed)
    memory = learner.algorithm.memory(config.envs, 1, memory_seed)
    if isinstance(memory, Replay):
        budget.check_replay_fits(memory.nbytes(), memory.ring.lanes * memory.ring.rows, ranks_here)
    if saved is not None:
        # The actor's first observations are scaled by these statistics.
        load_normalizer(env, saved.tensors)
    actor = make_actor(config, rank, world, device, step, env=env, algorithm=learner.algorithm)
    return Serial(config, actor, memory, learner)


def make_threads(
    config: RunConfig, reducer: Reducer, device: torch.device, step: int, log: Log
) -> Threads:
    """Return the backend `threads`, whose actors start at `step`."""
    count = cores() if config.actors == "auto" else config.actors
    env_threads = config.threads or cores_each(count)
    with lower_priority_of_new_threads():
        env = make_actor_env(config, 0, env_threads)
    require(
        not statistics(env),
        "env.normalize_obs and env.normalize_reward keep statistics that actors on threads do not"
        " share; use --backend serial",
    )
    # Actors compute on one core each, and the learner on what they leave.
    left = max(1, cores() - count)
    torch.set_num_threads(config.threads or useful_threads(spaces_of(env), left))
    network_seed, memory_seed = seeds(config.seed, reducer.rank, step, 0)
    learner = make_learner(config, spaces_of(env), reducer, device, network_seed)
    memory = learner.algorithm.memory(config.envs, count, memory_seed)
    assert isinstance(memory, Replay)
    budget.check_replay_fits(memory.nbytes(), memory.ring.lanes * memory.ring.rows, 1)
    # Small networks compute for microseconds at a time. Threads that do so at once hand the
    # interpreter back and forth after every operation; taking turns they need not.
    turn = threading.Lock() if is_small(spaces_of(env)) else None
    devices = [device_of(name) for name in config.act_device.split(",")]

    def actor(number: int, restart: int) -> Actor:
        own = env if not (number or restart) else make_actor_env(config, number, env_threads)
        own_device = devices[number % len(devices)]
        return make_actor(config, number, count, own_device, step, restart, env=own, turn=turn)

    with lower_priority_of_new_threads():
        return Threads(config, learner, memory, count, actor, log)


def make_driver(config: RunConfig, saved: Checkpoint | None, log: Log) -> Backend:
    """Return the driver of a run whose workers are ready, restored from `saved` if given."""
    from rookery.backends.ray.cluster import cluster_now, connected, needs_of

    with ExitStack() as opened:
        env = make_env(config.environment, config.env, num_envs=1)
        opened.callback(env.close)
        cpus = 0.0
        if config.actors != "auto":
            cpus = needs_of(config, 0.0).amount("CPU", config.actors)
        opened.enter_context(connected("backend=ray", cpus))
        # Importing Ray before this reads its environment variables too early.
        from rookery.backends.ray.asynchronous import AsynchronousDriver
        from rookery.backends.ray.synchronous import SynchronousDriver
        from rookery.backends.ray.workers import WorkerSpec

        torch.set_num_threads(1)
        spec = WorkerSpec(
            config,
            spaces_of(env),
            saved.step if saved else 0,
            [os.path.abspath(path or os.getcwd()) for path in sys.path],
            registered().get(config.environment),
        )
        # Settings that do not suit the environment are refused here, not in a worker.
        algorithm = make_algorithm(config, spec.spaces, torch.device("cpu"))
        needs = needs_of(config, cluster_now().amount("GPU"))
        kind = AsynchronousDriver if algorithm.asynchronous else SynchronousDriver
        driver = kind(spec, env, algorithm, needs, log)
        opened.callback(driver.end)
        driver.start_workers(saved)
        driver.closing = opened.pop_all()
        return driver


def make_actor_env(config: RunConfig, number: int, threads: int) -> VectorEnv:
    """Return the environments of actor `number`, stepped by `threads` threads."""
    name = turned(config.environment, number * config.envs)
    env = make_env(name, config.env, num_envs=config.envs, threads=threads)
    return record_observations(env) if config.inspect_every and number == 0 else env


def make_actor(
    config: RunConfig,
    number: int,
    count: int,
    device: torch.device,
    step: int,
    restart: int = 0,
    *,
    env: VectorEnv,
    algorithm: Algorithm | None = None,
    turn: AbstractContextManager[Any] | None = None,
) -> Actor:
    """Return actor `number` of `count`, with a network of its own unless `algorithm` is given."""
    if algorithm is None:
        algorithm = make_algorithm(config, spaces_of(env), device)
        algorithm.network.to(device)
    return Actor(
        env,
        algorithm,
        share_of(algorithm.collection, number, count),
        device,
        *seeds(config.seed, number, step, 1 + restart),
        Lanes(number * config.envs, config.envs, count * config.envs),
        pool_of(env),
        turn,
    )


def make_learner(
    config: RunConfig, spaces: Spaces, reducer: Reducer, device: torch.device, seed: int
) -> Learner:
    """Return a learner whose network is drawn with `seed`."""
    torch.manual_seed(seed)
    algorithm = make_algorithm(config, spaces, device)
    return Learner(
        algorithm,
        config.learner,
        reducer,
        device,
        config.precision,
        config.compile,
        DiagnosisSpec(config.diagnose, config.histograms, config.watch_layers),
    )


def make_algorithm(config: RunConfig, spaces: Spaces, device: torch.device) -> Algorithm:
    """Return the algorithm for environments of these spaces, with a new network."""
    algorithm = algorithm_class(config.algorithm)(spaces, config.algo, config.net, device)
    algorithm.trace = config.learner.trace
    require(
        algorithm.collection.episodes is None or not config.env.one_life,
        "env.one_life ends an episode with every life, and algo.episodes starts a new game for"
        " every batch of them; use algo.rollout_steps",
    )
    return algorithm


def share_of(collection: Collection, number: int, count: int) -> Collection:
    """Return what actor `number` of `count` collects: their episodes add up to those asked for."""
    if collection.episodes is None:
        return collection
    require(
        collection.episodes >= count,
        f"algo.episodes={collection.episodes} is less than one for each of {count} actors",
    )
    more = number < collection.episodes % count
    return Collection(episodes=collection.episodes // count + more)


def seeds(*key: int) -> tuple[int, int]:
    """Return two seeds for a purpose: distinct for each rank, actor, restart and starting step,
    since a resumed run must not repeat its start."""
    first, second = np.random.SeedSequence(key).generate_state(2) >> 1
    return int(first), int(second)


def spaces_of(env: VectorEnv) -> Spaces:
    """Return the observation and action spaces of a single environment."""
    return Spaces(
        env.single_observation_space,
        env.single_action_space,
        frame_stack_of(env),
        normalizer_of(env),
    )


def is_small(spaces: Spaces) -> bool:
    """True if observations have no images: calling such a network costs more than its products."""
    return not has_images(spaces.obs)


def useful_threads(spaces: Spaces, available: int) -> int:
    """Return how many threads make the network faster: one for small networks, else all."""
    return 1 if is_small(spaces) else available
