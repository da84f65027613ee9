"""Parts of several backends: updates from a memory, tallies, published weights, prefetching."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rookery.algorithms.base import Algorithm
from rookery.backends.base import ProcessUsage, WorkerProgress
from rookery.data.steps import Batch, FinishedEpisode
from rookery.envs import statistics
from rookery.errors import require
from rookery.learning.actor import Actor, Played, Times
from rookery.learning.learner import Learner, Tensors
from rookery.memory.base import Memory
from rookery.networks.flat import FlatParameters

THREAD_WAIT_S = 0.05
"""Longest wait before looking whether the run is over."""
STOP_S = 2.0
"""Time that threads get to stop."""


def learn_from(memory: Memory, learner: Learner, limit: int | None = None) -> None:
    """Make every update that is due, at most `limit` if given."""
    for batch in itertools.islice(memory.batches(learner.precompute), limit):
        outcome = learner.update(batch)
        memory.reweigh(batch.keys, outcome.priorities)
        if outcome.stop:
            break
    learner.check_finite()


class ActorTally:
    """Counters of an actor and of those it replaced, for reports."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.episodes: list[FinishedEpisode] = []
        self.notices: list[str] = []
        self.times = Times()
        self.earlier_times = Times()
        """Times of actors that were replaced."""
        self.memory_mb = 0.0
        """Of the actor's process; 0 if that is the process that reports."""
        self.exploration = torch.zeros(())
        self.segments = 0
        self.lag_sum = 0
        self.lag_max = 0
        self.wait_s = 0.0
        """Time spent waiting for the learner."""

    def add(self, played: Played, lag: int = 0) -> None:
        """Count what an actor played with weights that were `lag` versions old."""
        self.env_steps += played.env_steps
        self.episodes += played.episodes
        self.notices += played.notices
        self.times = played.times
        self.memory_mb = played.memory_mb
        self.exploration = played.exploration
        self.segments += 1
        self.lag_sum += lag
        self.lag_max = max(self.lag_max, lag)

    def replace_actor(self) -> None:
        """Note that a new actor, whose times start at zero, continues."""
        self.earlier_times, self.times = self.all_times, Times()
        self.memory_mb = 0.0

    @property
    def all_times(self) -> Times:
        """Times of this actor and of those it replaced."""
        return self.earlier_times.plus(self.times)

    def take(self, learner: Times, interrupted: bool, usage: ProcessUsage) -> WorkerProgress:
        """Return the progress since the last call, with the times of the learner and the usage of
        the process that reports."""
        env_steps, self.env_steps = self.env_steps, 0
        episodes, self.episodes = self.episodes, []
        notices, self.notices = self.notices, []
        times = self.all_times.plus(learner)
        times = times._replace(cpu_s=times.cpu_s + usage.cpu_s)
        memory_mb = self.memory_mb + usage.memory_mb
        return WorkerProgress(
            env_steps, episodes, notices, times, interrupted, usage.seconds, memory_mb
        )


def actor_metrics(tallies: Sequence[ActorTally], explores_by: str | None) -> dict[str, float]:
    """Return the exploration and the policy lag of actors since the last call, in versions of the
    weights."""
    segments = sum(tally.segments for tally in tallies)
    lag = sum(tally.lag_sum for tally in tallies) / max(1, segments)
    most = max(tally.lag_max for tally in tallies)
    for tally in tallies:
        tally.segments = tally.lag_sum = tally.lag_max = 0
    columns = {}
    if explores_by is not None:
        means = [float(tally.exploration.mean()) for tally in tallies]
        columns[explores_by] = sum(means) / len(means)
    return columns | {"policy_lag_mean": lag, "policy_lag_max": most}


class WeightStore:
    """The newest weights, published as a whole so that no actor sees a mixture of two versions."""

    def __init__(self, values: Tensor):
        self.newest = (0, values.detach().clone())
        """Version, and a copy of the weights that never changes."""

    def publish(self, values: Tensor) -> None:
        """Make a copy of the learner's weights the newest version."""
        self.newest = (self.newest[0] + 1, values.detach().clone())


class ActorWithWeights:
    """An actor with a network of its own that takes over published weights."""

    def __init__(self, actor: Actor):
        self.actor = actor
        self.flat = FlatParameters(actor.algorithm.network, actor.device)
        self.version = -1

    def load(self, version: int, values: Tensor) -> None:
        """Play with these weights from now on."""
        if version != self.version:
            self.flat.copy_from(values)
            self.version = version


class BatchSource(Protocol):
    """A replay memory, here or elsewhere, that batches are drawn from."""

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch may be drawn; False if `timeout` seconds pass before."""
        ...

    def sample(self) -> Batch:
        """Return a batch on the learner's device."""
        ...


class Prefetch(threading.Thread):
    """Draws batches before the learner needs them and precomputes their target values."""

    def __init__(self, source: BatchSource, algorithm: Algorithm, depth: int):
        super().__init__(name="prefetch", daemon=True)
        self.source = source
        self.algorithm = algorithm
        self.batches: queue.Queue[Batch] = queue.Queue(depth)
        self.stopping = False
        self.failure: Exception | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self.stopping:
                if self.source.wait_until_due(THREAD_WAIT_S):
                    self.put(self.algorithm.precompute_targets(self.source.sample()))
        except Exception as error:
            self.failure = error

    def put(self, batch: Batch) -> None:
        """Add a batch once the queue has room."""
        while not self.stopping:
            try:
                self.batches.put(batch, timeout=THREAD_WAIT_S)
                return
            except queue.Full:
                continue

    def get(self) -> Batch | None:
        """Return the next batch; None if none came within 50 ms."""
        try:
            return self.batches.get(timeout=THREAD_WAIT_S)
        except queue.Empty:
            if self.failure is not None:
                raise self.failure from None
            return None

    def stop(self) -> None:
        self.stopping = True
        if self.ident is not None:
            self.join(STOP_S)


def normalizer_tensors(env: VectorEnv) -> Tensors:
    """Return the statistics of the environment's normalisation, if it has any."""
    moments = {
        f"{name}.{key}": torch.as_tensor(value)
        for name, moments in statistics(env).items()
        for key, value in moments.state().items()
    }
    return {"normalizer": moments} if moments else {}


def load_normalizer(env: VectorEnv, tensors: Tensors) -> None:
    """Load the statistics of the environment's normalisation."""
    saved = tensors.get("normalizer", {})
    for name, moments in statistics(env).items():
        keys = [key for key in saved if key.rpartition(".")[0] == name]
        require(
            keys, f"env.normalize_{name.split('.')[0]}: the checkpoint has no statistics for it"
        )
        moments.load({key.rpartition(".")[2]: saved[key].numpy() for key in keys})
