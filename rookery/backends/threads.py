"""Actors in threads beside the learner: they fill one replay memory while it learns from it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from rookery.algorithms.base import Algorithm
from rookery.backends.actor_threads import PATIENCE_S, STOP_S, Crew
from rookery.backends.base import Backend, Setup
from rookery.backends.components import Parts
from rookery.backends.progress import Share
from rookery.data.steps import Batch


class Source(Protocol):
    """Where batches are drawn from."""

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch may be drawn; whether it may."""
        ...

    def sample(self) -> Batch:
        """A batch on the learner's device."""
        ...


class Prefetch(threading.Thread):
    """Draws batches ahead of the learner, and computes what it can of them."""

    def __init__(self, memory: Source, algorithm: Algorithm, depth: int):
        super().__init__(name="prefetch", daemon=True)
        self.memory = memory
        self.algorithm = algorithm
        self.ready: queue.Queue[Batch] = queue.Queue(depth)
        self.stopping = False
        self.failure: Exception | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self.stopping:
                if self.memory.wait_until_due(PATIENCE_S):
                    self.put(self.algorithm.ahead(self.memory.sample()))
        except Exception as error:
            self.failure = error

    def put(self, batch: Batch) -> None:
        """Wait for a place in the queue."""
        while not self.stopping:
            try:
                self.ready.put(batch, timeout=PATIENCE_S)
                return
            except queue.Full:
                continue

    def get(self) -> Batch | None:
        """The next batch, or None if there is none for a moment."""
        try:
            return self.ready.get(timeout=PATIENCE_S)
        except queue.Empty:
            if self.failure is not None:
                raise self.failure from None
            return None

    def stop(self) -> None:
        """End the thread."""
        self.stopping = True
        if self.ident is not None:
            self.join(STOP_S)


class Threads(Backend):
    """N actor threads, one thread that draws batches, and the learner in this one."""

    def __init__(self, parts: Parts, crew: Crew):
        self.parts = parts
        self.crew = crew
        self.prefetch = Prefetch(crew.memory, parts.algorithm, parts.config.learner.prefetch)
        self.wait_s = 0.0

    def setup(self) -> Setup:
        line, device = f"threads x {len(self.crew.threads)}", str(self.parts.learner.device)
        return Setup(line, self.parts.reducer.name, 1, device, torch.get_num_threads())

    def advance(self) -> None:
        """One update, or a moment's wait for a batch."""
        parts = self.parts
        self.crew.memory.set_progress(parts.progress.env_steps / parts.config.env_steps)
        start = time.perf_counter()
        batch = self.prefetch.get()
        self.wait_s += time.perf_counter() - start
        if batch is not None:
            outcome = parts.learner.update(batch)
            self.crew.memory.reweigh(batch.keys, outcome.priorities)
            parts.learner.check_finite()
            if parts.learner.updates % parts.config.learner.publish_updates == 0:
                self.crew.weights.publish(parts.learner.flat.values)
        self.crew.check()

    def begin(self) -> None:
        """Begin to play and to draw."""
        self.crew.env_steps = self.parts.progress.env_steps
        self.crew.start()
        self.prefetch.start()

    def exchange(self, interrupted: bool) -> list[Share]:
        """What each actor did."""
        parts = self.parts
        shares: list[Share] = []
        for thread in self.crew.threads:
            with self.crew.changed:
                env_steps, thread.env_steps = thread.env_steps, 0
                episodes, thread.episodes = thread.episodes, []
                notices, thread.notices = thread.notices, []
            self.crew.env_steps += env_steps
            shares.append(
                Share(
                    env_steps=env_steps,
                    episodes=episodes,
                    notices=notices,
                    **thread.times._asdict(),
                    learn_s=parts.learner.learn_s,
                    reduce_s=parts.learner.reduce_s,
                    wait_s=self.wait_s,
                    cpu_s=0.0 if shares else parts.progress.cpu_seconds(),
                    interrupted=interrupted,
                    seconds=parts.progress.elapsed(),
                )
            )
        return shares

    def gauges(self) -> dict[str, float]:
        """Lag of the actors' weights behind the published ones, in versions, and how long actors
        waited for the learner, since last asked."""
        threads = self.crew.threads
        with self.crew.changed:
            segments = sum(thread.segments for thread in threads)
            lag = sum(thread.lag_sum for thread in threads) / max(1, segments)
            most = max(thread.lag_max for thread in threads)
            waited = sum(thread.wait_s for thread in threads) / len(threads)
            for thread in threads:
                thread.lag_sum, thread.lag_max, thread.segments = 0, 0, 0
                thread.wait_s = 0.0
        name = self.parts.algorithm.explores_by
        explore = [float(thread.player.actor.explore.mean()) for thread in threads]
        return ({name: sum(explore) / len(explore)} if name else {}) | {
            "policy_lag_mean": lag,
            "policy_lag_max": most,
            "actors_healthy": self.crew.healthy(),
            "actor_wait_s": waited,
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Actors wait; batches that are ready stay so."""
        self.crew.pause()
        try:
            yield
        finally:
            self.crew.resume()

    def close(self) -> None:
        """Stop drawing and playing."""
        self.prefetch.stop()
        self.crew.stop()
