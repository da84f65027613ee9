"""Actors in threads beside the learner: they fill one replay memory while it learns from it."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.data.steps import Batch
from rookery.errors import Diverged, EnvironmentFailure
from rookery.learning.actor import Actor, Stopped
from rookery.memory.replay import Replay
from rookery.networks.flat import FlatParameters
from rookery.runtime.progress import Share
from rookery.runtime.state import Parts

PATIENCE_S = 0.05
"""How long anybody waits before looking whether the run is over."""
STOP_S = 2.0
"""How long actors may take to stop."""


class Snapshot(NamedTuple):
    """Weights that never change."""

    version: int
    values: Tensor


class Weights:
    """The newest weights: published as a whole, so that nobody ever sees a mixture of two."""

    def __init__(self, values: Tensor):
        self.newest = Snapshot(0, values.detach().clone())

    def publish(self, values: Tensor) -> None:
        """Make a copy of the learner's weights the newest."""
        self.newest = Snapshot(self.newest.version + 1, values.detach().clone())


class Player:
    """An actor with a network of its own, which it brings up to date between segments."""

    def __init__(self, actor: Actor):
        self.actor = actor
        self.flat = FlatParameters(actor.algorithm.network, actor.device)
        self.version = -1

    def refresh(self, weights: Weights) -> None:
        """Take the newest weights."""
        newest = weights.newest
        if newest.version != self.version:
            self.flat.copy_from(newest.values)
            self.version = newest.version


class ActorThread(threading.Thread):
    """Plays until told to stop; started anew, with new environments, when it fails."""

    def __init__(self, number: int, make_actor: Callable[[int, int], Actor], crew: Crew):
        super().__init__(name=f"actor-{number}", daemon=True)
        self.number = number
        self.make_actor = make_actor
        self.crew = crew
        self.restarts = 0
        self.parked = True
        self.failure: Exception | None = None
        self.player = Player(make_actor(number, 0))
        self.lag_sum, self.lag_max, self.segments = 0, 0, 0
        self.wait_s = 0.0
        self.env_steps = 0
        self.episodes: list[tuple[float, int]] = []
        self.times_before = (0.0, 0.0)

    @property
    def times(self) -> tuple[float, float]:
        """Seconds in the environments and in the network, those of replaced actors included."""
        actor, (env_s, inference_s) = self.player.actor, self.times_before
        return env_s + actor.env_s, inference_s + actor.inference_s

    def run(self) -> None:
        torch.set_num_threads(1)
        while not self.crew.stopping:
            try:
                self.play()
                break
            except Stopped:
                break
            except Diverged as error:
                self.failure = error
                break
            except Exception as error:
                if not self.start_anew(error):
                    break
        self.close()
        with self.crew.changed:
            self.parked = True
            self.crew.changed.notify_all()

    def play(self) -> None:
        """Segment after segment."""
        crew = self.crew
        while crew.wait_for_turn(self):
            start = time.perf_counter()
            if not crew.memory.limiter.wait_to_insert(PATIENCE_S):
                self.wait_s += time.perf_counter() - start
                continue
            self.wait_s += time.perf_counter() - start
            actor = self.player.actor
            self.player.refresh(crew.weights)
            segment = actor.collect(crew.env_steps)
            crew.memory.add(actor.algorithm.prepare(segment), self.number)
            lag = crew.weights.newest.version - self.player.version
            with crew.changed:
                self.lag_sum, self.lag_max = self.lag_sum + lag, max(self.lag_max, lag)
                self.segments += 1
                self.env_steps += actor.take_steps()
                self.episodes += actor.take_episodes()

    def start_anew(self, error: Exception) -> bool:
        """Replace the actor that failed; whether it may be."""
        self.crew.tell(f"actor {self.number} failed: {error}", traceback.format_exc())
        if self.restarts >= self.crew.most_restarts:
            self.failure = error
            return False
        self.restarts += 1
        try:
            self.close()
            self.times_before = self.times
            self.player = Player(self.make_actor(self.number, self.restarts))
        except Exception as again:
            self.failure = again
            return False
        self.crew.memory.cut(self.number)
        self.crew.tell(
            f"actor {self.number} started anew, {self.restarts} of at most"
            f" {self.crew.most_restarts} times",
            "",
        )
        return True

    def close(self) -> None:
        """Close the environments; one that failed may fail at this too."""
        try:
            self.player.actor.env.close()
        except Exception as error:
            self.crew.tell(f"actor {self.number}: its environments did not close: {error}", "")


class Crew:
    """The actor threads, and what they share."""

    def __init__(
        self,
        count: int,
        make_actor: Callable[[int, int], Actor],
        memory: Replay,
        weights: Weights,
        most_restarts: int,
        tell: Callable[[str, str], None],
    ):
        self.memory = memory
        self.weights = weights
        self.most_restarts = most_restarts
        self.tell = tell
        self.stopping = False
        self.pausing = False
        self.env_steps = 0
        self.changed = threading.Condition()
        self.threads = [ActorThread(number, make_actor, self) for number in range(count)]

    def start(self) -> None:
        """Begin to play."""
        for thread in self.threads:
            thread.start()

    def wait_for_turn(self, thread: ActorThread) -> bool:
        """Park the thread while the crew pauses; whether to go on playing."""
        with self.changed:
            thread.parked = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.stopping or not self.pausing)
            thread.parked = False
            return not self.stopping

    def pause(self) -> None:
        """Return when nobody plays any more."""
        with self.changed:
            self.pausing = True
            self.changed.wait_for(lambda: all(t.parked for t in self.threads))

    def resume(self) -> None:
        """Let everybody play again."""
        with self.changed:
            self.pausing = False
            self.changed.notify_all()

    def stop(self) -> None:
        """End all threads; one that does not end within two seconds is left behind and told of."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.player.actor.stopped = True
        deadline = time.monotonic() + STOP_S
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.tell(f"{thread.name} did not stop within {STOP_S:g} s", "")

    def healthy(self) -> int:
        """How many play."""
        return sum(thread.is_alive() for thread in self.threads)

    def check(self) -> None:
        """Raise if an actor failed for good."""
        for thread in self.threads:
            if isinstance(thread.failure, Diverged):
                raise thread.failure
            if thread.failure is not None:
                raise EnvironmentFailure(
                    f"actor {thread.number} failed {thread.restarts + 1} times, at last with:"
                    f" {thread.failure}; log.txt has the traceback"
                )


class Prefetch(threading.Thread):
    """Draws batches ahead of the learner."""

    def __init__(self, memory: Replay, depth: int):
        super().__init__(name="prefetch", daemon=True)
        self.memory = memory
        self.ready: queue.Queue[Batch] = queue.Queue(depth)
        self.stopping = False
        self.failure: Exception | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self.stopping:
                if self.memory.wait_until_due(PATIENCE_S):
                    self.put(self.memory.sample())
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


class Threads:
    """N actor threads, one thread that draws batches, and the learner in this one."""

    def __init__(self, parts: Parts, crew: Crew):
        assert isinstance(parts.memory, Replay)
        self.parts = parts
        self.crew = crew
        self.prefetch = Prefetch(parts.memory, parts.config.learner.prefetch)
        self.wait_s = 0.0
        self.started = False

    def advance(self) -> None:
        """One update, or a moment's wait for a batch."""
        self.start()
        parts = self.parts
        start = time.perf_counter()
        batch = self.prefetch.get()
        self.wait_s += time.perf_counter() - start
        if batch is not None:
            outcome = parts.learner.update(batch)
            parts.memory.reweigh(batch.keys, outcome.priorities)
            parts.learner.check_finite()
            if parts.learner.updates % parts.config.learner.publish_updates == 0:
                self.crew.weights.publish(parts.learner.flat.values)
        self.crew.check()

    def start(self) -> None:
        """Begin to play and to draw."""
        if not self.started:
            self.started = True
            self.crew.env_steps = self.parts.progress.env_steps
            self.crew.weights.publish(self.parts.learner.flat.values)
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
            self.crew.env_steps += env_steps
            env_s, inference_s = thread.times
            shares.append(
                Share(
                    env_steps=env_steps,
                    episodes=episodes,
                    env_s=env_s,
                    inference_s=inference_s,
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

    def random_state(self) -> dict[str, Tensor]:
        """None: a run in threads cannot be repeated to the bit."""
        return {}

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
