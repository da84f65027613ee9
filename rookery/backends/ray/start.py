"""Start a run on Ray: connect, start the workers, return the driver."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import torch

from rookery.algorithms import algorithm_class
from rookery.backends.base import Backend, Log
from rookery.backends.factory import make_algorithm, spaces_of
from rookery.backends.ray.cluster import cluster_now, needs_of
from rookery.backends.ray.connect import connected
from rookery.config import RunConfig
from rookery.envs import make_env, registered
from rookery.runs.checkpoint import Checkpoint


def make_driver(config: RunConfig, saved: Checkpoint | None, log: Log) -> Backend:
    """Return the driver of a run whose workers are ready, restored from `saved` if given."""
    with ExitStack() as opened:
        env = make_env(config.environment, config.env, num_envs=1)
        opened.callback(env.close)
        opened.enter_context(connected("backend=ray", cpus_of(config)))
        # Importing Ray before this reads its environment variables too early.
        from rookery.backends.ray.asynchronous import AsynchronousDriver
        from rookery.backends.ray.synchronous import SynchronousDriver
        from rookery.backends.ray.workers import WorkerSpec

        torch.set_num_threads(1)
        spec = WorkerSpec(
            config,
            spaces_of(env),
            saved.step if saved else 0,
            search_path(),
            registered().get(config.environment),
        )
        # Settings that do not suit the environment are refused here, not in a worker.
        algorithm = make_algorithm(config, spec.spaces, torch.device("cpu"))
        needs = needs_of(config, cluster_now().amount("GPU"))
        asynchronous = algorithm_class(config.algorithm).asynchronous
        kind = AsynchronousDriver if asynchronous else SynchronousDriver
        driver = kind(spec, env, algorithm, needs, log)
        opened.callback(driver.end)
        driver.start_workers(saved)
        driver.closing = opened.pop_all()
        return driver


def cpus_of(config: RunConfig) -> float:
    """Return the CPUs that a Ray started for this run must have."""
    if config.actors == "auto":
        return 0.0
    return needs_of(config, 0.0).amount("CPU", config.actors)


def search_path() -> list[str]:
    """Return where this process looks for modules, the working directory included."""
    return [os.path.abspath(path or os.getcwd()) for path in sys.path]
