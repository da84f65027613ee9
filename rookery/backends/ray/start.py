"""From a config to a run on a cluster."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import torch

from rookery.algorithms import algorithm_class
from rookery.backends.base import Backend, Tell
from rookery.backends.components import Parts, restore, spaces_of
from rookery.backends.factory import make_algorithm, seeds
from rookery.backends.progress import Progress
from rookery.backends.ray import cluster as resources
from rookery.backends.ray.connect import connected
from rookery.config import RunConfig
from rookery.envs import make_env, registered
from rookery.learning.learner import Learner
from rookery.learning.reduce import Alone
from rookery.runs.checkpoint import Checkpoint

CPU = torch.device("cpu")


def on_cluster(config: RunConfig, saved: Checkpoint | None, tell: Tell) -> tuple[Parts, Backend]:
    """The parts of the driver and the roles in their places, gone on from `saved` if given."""
    with ExitStack() as opened:
        env = make_env(config.environment, config.env, num_envs=1)
        opened.callback(env.close)
        opened.enter_context(connected("backend=ray", cpus_of(config)))
        # Ray may only be imported once it is known how it is to be started.
        from rookery.backends.ray.asynchronous import Streams
        from rookery.backends.ray.replay_statistics import ReplayLedger
        from rookery.backends.ray.synchronous import Turns
        from rookery.backends.ray.workers import Brief

        step = saved.step if saved else 0
        torch.set_num_threads(1)
        torch.manual_seed(seeds(config.seed, 0, step, 0)[0])
        algorithm = make_algorithm(config, spaces_of(env), CPU)
        learner = Learner(algorithm, config.learner, Alone(), CPU)
        parts = Parts(config, env, algorithm, ReplayLedger(), learner, Alone(), Progress())
        if saved is not None:
            restore(parts, saved.tensors, saved.meta)
        made_here = registered().get(config.environment)
        brief = Brief(config, spaces_of(env), step, search_path(), made_here)
        needs = resources.needs_of(config, resources.cluster_now().amount("GPU"))
        kind = Streams if algorithm_class(config.algorithm).asynchronous else Turns
        driver = kind(parts, brief, needs, tell)
        opened.callback(driver.end)
        driver.start()
        driver.closing = opened.pop_all()
        return parts, driver


def cpus_of(config: RunConfig) -> float:
    """CPUs that a Ray of this run's own must have."""
    if config.actors == "auto":
        return 0.0
    return resources.needs_of(config, 0.0).amount("CPU", config.actors)


def search_path() -> list[str]:
    """Where this process looks for modules, the working directory included."""
    return [os.path.abspath(path or os.getcwd()) for path in sys.path]
