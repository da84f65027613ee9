"""The actor threads, and the weights they play with."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.errors import Diverged, EnvironmentFailure
from rookery.learning.actor import Actor, Stopped, Times
from rookery.machine import lower_priority
from rookery.memory.replay import Replay
from rookery.networks.flat import FlatParameters

PATIENCE_S = 0.05
"""How long anybody waits before looking whether the run is over."""
STOP_S = 2.0
"""How long threads may take to stop."""


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

    def take(self, version: int, values: Tensor) -> None:
        """Play with these weights from now on."""
        if version != self.version:
            self.flat.copy_from(values)
            self.version = version


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
        self.notices: list[str] = []
        self.times_before = Times()

    @property
    def times(self) -> Times:
        """Where time went, that of replaced actors included."""
        return self.times_before.plus(self.player.actor.times)

    def run(self) -> None:
        torch.set_num_threads(1)
        # The learner goes first: actors that are ahead of it would wait for it anyway.
        lower_priority(threading.get_native_id())
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
            self.player.take(*crew.weights.newest)
            segment = actor.collect(crew.env_steps)
            crew.memory.add(actor.algorithm.prepare(segment), self.number)
            lag = crew.weights.newest.version - self.player.version
            with crew.changed:
                self.lag_sum, self.lag_max = self.lag_sum + lag, max(self.lag_max, lag)
                self.segments += 1
                self.env_steps += actor.take_steps()
                self.episodes += actor.take_episodes()
                self.notices += actor.take_notices()

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
