"""Actor threads: each plays until it is stopped, and is restarted when its environments fail."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

import torch

from rookery.backends.base import Log
from rookery.backends.common import STOP_S, THREAD_WAIT_S, ActorTally, ActorWithWeights, WeightStore
from rookery.errors import Diverged, RunFailed
from rookery.learning.actor import Actor, Stopped
from rookery.machine import lower_priority
from rookery.memory.replay import Replay


class ActorThread(threading.Thread):
    """Plays until stopped; gets a new actor with new environments when it fails."""

    def __init__(self, number: int, make_actor: Callable[[int, int], Actor], group: ActorThreads):
        super().__init__(name=f"actor-{number}", daemon=True)
        self.number = number
        self.make_actor = make_actor
        self.group = group
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
        while not self.group.stopping:
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
        with self.group.changed:
            self.waiting = True
            self.group.changed.notify_all()

    def play(self) -> None:
        """Collect segments and add them to the replay memory until the group stops."""
        group = self.group
        while group.wait_for_turn(self):
            start = time.perf_counter()
            may_insert = group.memory.limiter.wait_to_insert(THREAD_WAIT_S)
            self.tally.wait_s += time.perf_counter() - start
            if not may_insert:
                continue
            actor = self.player.actor
            self.player.load(*group.weights.newest)
            segment = actor.collect(group.env_steps)
            group.memory.add(actor.algorithm.prepare(segment), self.number)
            lag = group.weights.newest.version - self.player.version
            with group.changed:
                self.tally.add(actor.take_played(), lag)

    def restart(self, error: Exception) -> bool:
        """Replace the actor that failed; False if it failed too often or cannot be made again."""
        log, limit = self.group.log, self.group.max_restarts
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
        self.group.memory.cut(self.number)
        log(f"actor {self.number} restarted ({self.restarts} of at most {limit} times)", "")
        return True

    def close(self) -> None:
        """Close the environments; those that failed may fail again here."""
        try:
            self.player.actor.env.close()
        except Exception as error:
            self.group.log(f"actor {self.number}: closing its environments failed: {error}", "")


class ActorThreads:
    """All actor threads, with the replay memory and the weights they share."""

    def __init__(
        self,
        count: int,
        make_actor: Callable[[int, int], Actor],
        memory: Replay,
        weights: WeightStore,
        max_restarts: int,
        log: Log,
    ):
        self.memory = memory
        self.weights = weights
        self.max_restarts = max_restarts
        self.log = log
        self.stopping = False
        self.pausing = False
        self.env_steps = 0
        """Steps of the run so far."""
        self.changed = threading.Condition()
        """Guards tallies, `stopping`, `pausing` and each thread's `waiting`."""
        self.threads = [ActorThread(number, make_actor, self) for number in range(count)]

    def start(self) -> None:
        """Start all threads."""
        for thread in self.threads:
            thread.start()

    def wait_for_turn(self, thread: ActorThread) -> bool:
        """Hold the thread while the group pauses; False if it must stop."""
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

    def stop(self) -> None:
        """Stop all threads; one that does not stop within two seconds is abandoned and logged."""
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
