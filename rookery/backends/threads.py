"""The backend `threads`: actor threads fill one replay memory while the learner learns from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rookery.backends.actor_threads import ActorThreads
from rookery.backends.base import Backend, CheckpointState, Report, Setup
from rookery.backends.common import Clock, Prefetch, actor_metrics
from rookery.backends.contents import learner_tensors, load_learner
from rookery.config import RunConfig
from rookery.learning.learner import Learner
from rookery.runs.checkpoint import Checkpoint


class Threads(Backend):
    """N actor threads, a thread that draws batches, and the learner in the main thread."""

    def __init__(self, config: RunConfig, learner: Learner, actors: ActorThreads):
        self.config = config
        self.learner = learner
        self.actors = actors
        self.memory = actors.memory
        self.prefetch = Prefetch(self.memory, learner.algorithm, config.learner.prefetch)
        self.wait_s = 0.0
        """Time the learner waited for batches."""
        self.clock = Clock()

    def setup(self) -> Setup:
        return Setup(
            backend="threads",
            description=f"threads x {len(self.actors.threads)}",
            transport=self.learner.reducer.name,
            ranks=1,
            device=str(self.learner.device),
            threads=torch.get_num_threads(),
            engine=self.actors.threads[0].player.actor.env.engine,  # type: ignore[attr-defined]
            weights=self.learner.weights,
            memory=self.memory.describe(),
        )

    def start(self) -> None:
        self.clock = Clock()
        self.actors.start()
        self.prefetch.start()

    def advance(self, env_steps: int) -> None:
        """Make one update, or wait up to 50 ms for a batch."""
        done = env_steps / self.config.env_steps
        self.actors.env_steps = env_steps
        self.memory.set_progress(done)
        self.learner.set_progress(done)
        start = time.perf_counter()
        batch = self.prefetch.get()
        self.wait_s += time.perf_counter() - start
        if batch is not None:
            outcome = self.learner.update(batch)
            self.memory.reweigh(batch.keys, outcome.priorities)
            self.learner.check_finite()
            if self.learner.updates % self.config.learner.publish_updates == 0:
                self.actors.weights.publish(self.learner.flat.values)
        self.actors.check()

    def report(self, interrupted: bool) -> Report:
        learner, clock = self.learner, self.clock
        times = learner.times._replace(wait_s=self.wait_s)
        workers = []
        with self.actors.changed:
            for number, thread in enumerate(self.actors.threads):
                cpu_s = 0.0 if number else clock.cpu_seconds()
                workers.append(thread.tally.take(times, cpu_s, interrupted, clock.elapsed()))
        workers[0].notices.extend(learner.take_notices())
        return Report(workers, learner.updates, learner.samples, learner.input_bytes)

    def metrics(self, seconds: float) -> dict[str, float]:
        tallies = [thread.tally for thread in self.actors.threads]
        columns = self.learner.take_metrics() | {"learning_rate": self.learner.learning_rate}
        columns |= self.memory.take_report(seconds)
        with self.actors.changed:
            columns |= actor_metrics(tallies, self.learner.algorithm.explores_by)
            waited = sum(tally.wait_s for tally in tallies) / len(tallies)
            for tally in tallies:
                tally.wait_s = 0.0
        return columns | {"actors_healthy": self.actors.healthy(), "actor_wait_s": waited}

    def state(self) -> CheckpointState:
        return CheckpointState(
            learner_tensors(self.learner) | {"random": {}}, self.learner.counts()
        )

    def restore(self, saved: Checkpoint) -> None:
        load_learner(self.learner, saved.tensors)
        self.learner.load_counts(saved.meta)
        self.actors.weights.publish(self.learner.flat.values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the actors while the body runs; batches that are ready stay so."""
        self.actors.pause()
        try:
            yield
        finally:
            self.actors.resume()

    def close(self) -> None:
        self.prefetch.stop()
        self.actors.stop()
