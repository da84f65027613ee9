"""Worker slots: each is refilled with a new process when its process dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rookery.backends.common import ActorTally
from rookery.backends.ray.messages import ReplayStatus, SegmentInfo, WorkerPlace

RATE_S = 5.0
"""Time over which an actor's speed is averaged."""
RECENT_EPISODES = 20


class Slot:
    """The slot of a worker, and the Ray actor that fills it."""

    def __init__(self, name: str, number: int, start: Callable[[int], tuple[Any, Any]]):
        self.name = name
        self.number = number
        self.start = start
        """Starts the process after so many restarts; returns its handle and a reference to its
        answer when ready."""
        self.restarts = 0
        self.handle: Any = None
        self.starting: Any = None
        """Reference to wait for until the worker is ready; None afterwards."""
        self.place: WorkerPlace | None = None

    def fill(self) -> None:
        """Start a process."""
        self.place = None
        self.handle, self.starting = self.start(self.restarts)

    @property
    def ready(self) -> bool:
        return self.place is not None

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


class ShardSlot(Slot):
    """The slot of a replay shard."""

    def __init__(self, number: int, start: Callable[[int], tuple[Any, Any]]):
        super().__init__("replay shard", number, start)
        self.status: ReplayStatus | None = None
        self.polled = False
        """True while a request for its status is under way."""
        self.poll_at = 0.0

    @property
    def may_insert(self) -> bool:
        """True if actors need not wait for the learner."""
        return self.ready and (self.status is None or self.status.may_insert)


class ActorSlot(Slot):
    """The slot of an actor, and what its processes did."""

    def __init__(self, number: int, start: Callable[[int], tuple[Any, Any]]):
        super().__init__("actor", number, start)
        self.under_way: set[Any] = set()
        """Segments being played or stored."""
        self.tally = ActorTally()
        self.returns: list[float] = []
        """Returns of the last episodes."""
        self.env_steps = 0
        self.marks: list[tuple[float, int]] = []
        """Times at which segments came, and steps until then."""

    def fill(self) -> None:
        self.under_way = set()
        self.tally.replace_actor()
        self.marks = []
        super().fill()

    def add(self, info: SegmentInfo, lag: int) -> None:
        """Count a segment played with weights that were `lag` versions old."""
        played = info.played
        self.tally.add(played, lag, info.cpu_s)
        self.returns = (self.returns + [r for r, _ in played.episodes])[-RECENT_EPISODES:]
        self.env_steps += played.env_steps
        now = time.monotonic()
        self.marks = [m for m in self.marks if m[0] > now - RATE_S] + [(now, self.env_steps)]

    @property
    def speed(self) -> float:
        """Steps per second over the last seconds."""
        if not self.marks:
            return 0.0
        (first, before), (_, now) = self.marks[0], self.marks[-1]
        return (now - before) / max(time.monotonic() - first, 1e-9)
