"""Parts of several backends: updates from a memory, prefetching, weights, tallies."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rookery.algorithms.base import Algorithm
from rookery.backends.base import WorkerProgress
from rookery.data.steps import Batch
from rookery.learning.actor import Actor, Played, Times
from rookery.learning.learner import Learner, LearnerTimes
from rookery.memory.base import Memory
from rookery.networks.flat import FlatParameters

THREAD_WAIT_S = 0.05
"""Longest wait before looking whether the run is over."""
STOP_S = 2.0
"""Time that threads get to stop."""
CPU_INTERVAL_S = 0.05


def learn_from(memory: Memory, learner: Learner, limit: int | None = None) -> None:
    """Make every update that is due, at most `limit` if given."""
    for batch in itertools.islice(memory.batches(learner.precompute), limit):
        outcome = learner.update(batch)
        memory.reweigh(batch.keys, outcome.priorities)
        if outcome.stop:
            break
    learner.check_finite()


class Clock:
    """Wall-clock and CPU time of this process since the backend started."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.cpu_started = time.process_time()
        self.cpu_asked = 0.0
        self.cpu_s = 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads since the start.

        The system call is slow in some containers, so the value may be 50 ms old.
        """
        now = time.monotonic()
        if now >= self.cpu_asked + CPU_INTERVAL_S:
            self.cpu_asked = now
            self.cpu_s = time.process_time() - self.cpu_started
        return self.cpu_s


class ActorTally:
    """Counters of an actor and of those it replaced, for reports."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.episodes: list[tuple[float, int]] = []
        self.notices: list[str] = []
        self.times = Times()
        self.cpu_s = 0.0
        self.earlier_times = Times()
        """Times of actors that were replaced."""
        self.earlier_cpu_s = 0.0
        self.exploration = torch.zeros(())
        self.segments = 0
        self.lag_sum = 0
        self.lag_max = 0
        self.wait_s = 0.0
        """Time spent waiting for the learner."""

    def add(self, played: Played, lag: int = 0, cpu_s: float = 0.0) -> None:
        """Count what an actor played with weights that were `lag` versions old."""
        self.env_steps += played.env_steps
        self.episodes += played.episodes
        self.notices += played.notices
        self.times, self.cpu_s = played.times, cpu_s
        self.exploration = played.exploration
        self.segments += 1
        self.lag_sum += lag
        self.lag_max = max(self.lag_max, lag)

    def replace_actor(self) -> None:
        """Note that a new actor, whose times start at zero, continues."""
        self.earlier_times, self.times = self.all_times, Times()
        self.earlier_cpu_s, self.cpu_s = self.all_cpu_s, 0.0

    @property
    def all_times(self) -> Times:
        """Times of this actor and of those it replaced."""
        return self.earlier_times.plus(self.times)

    @property
    def all_cpu_s(self) -> float:
        """CPU time of this actor and of those it replaced."""
        return self.earlier_cpu_s + self.cpu_s

    def take(
        self, learner: LearnerTimes, cpu_s: float, interrupted: bool, seconds: float
    ) -> WorkerProgress:
        """Return the progress since the last call, with the learner's times and `cpu_s` seconds of
        CPU time in this process."""
        env_steps, self.env_steps = self.env_steps, 0
        episodes, self.episodes = self.episodes, []
        notices, self.notices = self.notices, []
        return WorkerProgress(
            env_steps=env_steps,
            episodes=episodes,
            notices=notices,
            **self.all_times._asdict(),
            learn_s=learner.learn_s,
            reduce_s=learner.reduce_s,
            wait_s=learner.wait_s,
            cpu_s=self.all_cpu_s + cpu_s,
            interrupted=interrupted,
            seconds=seconds,
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


class Snapshot(NamedTuple):
    """A version of the weights that never changes."""

    version: int
    values: Tensor


class WeightStore:
    """The newest weights, published as a whole so that no actor sees a mixture of two versions."""

    def __init__(self, values: Tensor):
        self.newest = Snapshot(0, values.detach().clone())

    def publish(self, values: Tensor) -> None:
        """Make a copy of the learner's weights the newest version."""
        self.newest = Snapshot(self.newest.version + 1, values.detach().clone())


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
        """End the thread."""
        self.stopping = True
        if self.ident is not None:
            self.join(STOP_S)
