"""The backend `threads`: actor threads fill one replay memory while the learner learns from it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from rookery.backends.base import Backend, CheckpointState, Log, ProcessUsage, Report, Setup
from rookery.backends.common import (
    STOP_S,
    THREAD_WAIT_S,
    ActorTally,
    ActorWithWeights,
    Prefetch,
    WeightStore,
    actor_metrics,
)
from rookery.config import RunConfig
from rookery.data.layer_records import LayerRecords
from rookery.envs.wrappers.observation_record import ObservationRecord, observations_of
from rookery.errors import Diverged, RunFailed
from rookery.learning.actor import Actor, Stopped
from rookery.learning.diagnosis import UpdateEvidence
from rookery.learning.learner import Learner
from rookery.machine import lower_priority
from rookery.memory.replay import Replay
from rookery.runs.checkpoint import Checkpoint


class ActorThread(threading.Thread):
    """Plays until stopped; gets a new actor with new environments when it fails."""

    def __init__(self, number: int, make_actor: Callable[[int, int], Actor], backend: Threads):
        super().__init__(name=f"actor-{number}", daemon=True)
        self.number = number
        self.make_actor = make_actor
        self.backend = backend
        self.restarts = 0
        self.waiting = True
        """True while the thread collects no segment."""
        self.failure: Exception | None = None
        self.player = ActorWithWeights(make_actor(number, 0))
        self.tally = ActorTally()

    def run(self) -> None:
        torch.set_num_threads(1)
        # The learner goes first: actors that are ahead of it would wait for it anyway.
        lower_priority(threading.get_native_id())
        while not self.backend.stopping:
            try:
                self.play()
                break
            except Stopped:
                break
            except Diverged as error:
                self.failure = error
                break
            except Exception as error:
                if not self.restart(error):
                    break
        self.close()
        with self.backend.changed:
            self.waiting = True
            self.backend.changed.notify_all()

    def play(self) -> None:
        """Collect segments and add them to the replay memory until the run stops."""
        backend = self.backend
        while backend.wait_for_turn(self):
            start = time.perf_counter()
            may_insert = backend.memory.limiter.wait_to_insert(THREAD_WAIT_S)
            self.tally.wait_s += time.perf_counter() - start
            if not may_insert:
                continue
            actor = self.player.actor
            self.player.load(*backend.weights.newest)
            segment = actor.collect(backend.env_steps)
            backend.memory.add(actor.algorithm.prepare(segment), self.number)
            lag = backend.weights.newest[0] - self.player.version
            with backend.changed:
                self.tally.add(actor.take_played(), lag)

    def restart(self, error: Exception) -> bool:
        """Replace the actor that failed; False if it failed too often or cannot be made again."""
        log, limit = self.backend.log, self.backend.config.actor_restarts
        log(f"actor {self.number} failed: {error}", traceback.format_exc())
        if self.restarts >= limit:
            self.failure = error
            return False
        self.restarts += 1
        try:
            self.close()
            self.tally.times = self.player.actor.times
            self.tally.replace_actor()
            self.player = ActorWithWeights(self.make_actor(self.number, self.restarts))
        except Exception as again:
            self.failure = again
            return False
        self.backend.memory.cut(self.number)
        log(f"actor {self.number} restarted ({self.restarts} of at most {limit} times)", "")
        return True

    def close(self) -> None:
        """Close the environments; those that failed may fail again here."""
        try:
            self.player.actor.env.close()
        except Exception as error:
            self.backend.log(f"actor {self.number}: closing its environments failed: {error}", "")


class Threads(Backend):
    """N actor threads, a thread that draws batches, and the learner in the main thread."""

    def __init__(
        self,
        config: RunConfig,
        learner: Learner,
        memory: Replay,
        count: int,
        make_actor: Callable[[int, int], Actor],
        log: Log,
    ):
        self.config, self.learner, self.memory, self.log = config, learner, memory, log
        self.weights = WeightStore(learner.flat.values)
        self.prefetch = Prefetch(memory, learner.algorithm, config.learner.prefetch)
        self.wait_s = 0.0
        """Time the learner waited for batches."""
        self.env_steps = 0
        """Steps of the run so far."""
        self.stopping = False
        self.pausing = False
        self.changed = threading.Condition()
        """Guards tallies, `stopping`, `pausing` and each thread's `waiting`."""
        self.threads = [ActorThread(number, make_actor, self) for number in range(count)]

    def setup(self) -> Setup:
        return Setup(
            backend="threads",
            description=f"threads x {len(self.threads)}",
            transport=self.learner.reducer.name,
            ranks=1,
            device=str(self.learner.device),
            threads=torch.get_num_threads(),
            engine=self.threads[0].player.actor.env.engine,  # type: ignore[attr-defined]
            weights=self.learner.flat.values.numel(),
            memory=self.memory.describe(),
        )

    def start(self) -> None:
        for thread in (*self.threads, self.prefetch):
            thread.start()

    def advance(self, env_steps: int) -> None:
        """Make one update, or wait up to 50 ms for a batch."""
        done = env_steps / self.config.env_steps
        self.env_steps = env_steps
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
                self.weights.publish(self.learner.flat.values)
        self.check()

    def report(self, interrupted: bool, usage: ProcessUsage) -> Report:
        learner = self.learner
        times = learner.times._replace(wait_s=self.wait_s)
        workers = []
        with self.changed:
            for thread in self.threads:
                workers.append(thread.tally.take(times, interrupted, usage))
                usage = ProcessUsage(usage.seconds)  # one process: counted once
        workers[0].notices.extend(learner.take_notices())
        return Report(workers, learner.updates, learner.samples, learner.input_bytes)

    def metrics(self, seconds: float) -> dict[str, float]:
        tallies = [thread.tally for thread in self.threads]
        columns = self.learner.take_metrics()
        columns["learning_rate"] = self.learner.optimizer.learning_rate
        columns |= self.memory.take_report(seconds)
        with self.changed:
            columns |= actor_metrics(tallies, self.learner.algorithm.explores_by)
            waited = sum(tally.wait_s for tally in tallies) / len(tallies)
            for tally in tallies:
                tally.wait_s = 0.0
        return columns | {"actors_healthy": self.healthy(), "actor_wait_s": waited}

    def layer_records(self) -> LayerRecords | None:
        return self.learner.take_records()

    def evidence(self) -> UpdateEvidence | None:
        return self.learner.evidence

    def state(self) -> CheckpointState:
        tensors = self.learner.tensors() | {"random": {}}
        return CheckpointState(tensors, self.learner.counts())

    def restore(self, saved: Checkpoint) -> None:
        self.learner.load(saved.tensors, saved.meta)
        self.weights.publish(self.learner.flat.values)

    def observations(self) -> ObservationRecord | None:
        with self.paused():
            return observations_of(self.threads[0].player.actor.env)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the actors while the body runs; batches that are ready stay so."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def wait_for_turn(self, thread: ActorThread) -> bool:
        """Hold the thread while actors pause; False if it must stop."""
        with self.changed:
            thread.waiting = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.stopping or not self.pausing)
            thread.waiting = False
            return not self.stopping

    def pause(self) -> None:
        """Return when every thread has finished its segment and waits."""
        with self.changed:
            self.pausing = True
            self.changed.wait_for(lambda: all(t.waiting for t in self.threads))

    def resume(self) -> None:
        """Let all threads play again."""
        with self.changed:
            self.pausing = False
            self.changed.notify_all()

    def healthy(self) -> int:
        """Return the number of threads that play."""
        return sum(thread.is_alive() for thread in self.threads)

    def check(self) -> None:
        """Raise if an actor failed for good."""
        for thread in self.threads:
            if isinstance(thread.failure, Diverged):
                raise thread.failure
            if thread.failure is not None:
                raise RunFailed(
                    f"actor {thread.number} failed {thread.restarts + 1} times, at last with:"
                    f" {thread.failure}; log.txt has the traceback"
                )

    def close(self) -> None:
        """Stop all threads; actors that do not stop within two seconds are abandoned and logged."""
        self.prefetch.stop()
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
                self.log(f"{thread.name} did not stop within {STOP_S:g} s", "")
