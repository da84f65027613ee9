"""Places in a run that one process after another may fill."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rookery.backends.ray.messages import Kept, Played, Where
from rookery.learning.actor import Times

RATE_S = 5.0
"""Over how long an actor's speed is told."""


class Post:
    """A place, and the Ray actor that fills it."""

    def __init__(self, name: str, number: int, start: Callable[[int], tuple[Any, Any]]):
        self.name = name
        self.number = number
        self.start = start
        """Start so many-th process; its handle, and a reference to what it answers when ready."""
        self.restarts = 0
        self.handle: Any = None
        self.starting: Any = None
        """What to wait for until it is ready; None once it is."""
        self.where: Where | None = None

    def fill(self) -> None:
        """Send for a process."""
        self.where = None
        self.handle, self.starting = self.start(self.restarts)

    @property
    def ready(self) -> bool:
        return self.where is not None

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


class ShardPost(Post):
    """The place of a replay shard."""

    def __init__(self, number: int, start: Callable[[int], tuple[Any, Any]]):
        super().__init__("replay shard", number, start)
        self.kept: Kept | None = None
        self.asked = False
        """Whether it was asked how it is."""
        self.ask_at = 0.0

    @property
    def may_insert(self) -> bool:
        """Whether actors need not wait for the learner."""
        return self.ready and (self.kept is None or self.kept.may_insert)


class ActorPost(Post):
    """The place of an actor, and what those who filled it did."""

    def __init__(self, number: int, start: Callable[[int], tuple[Any, Any]]):
        super().__init__("actor", number, start)
        self.under_way: set[Any] = set()
        """Segments being played or stored."""
        self.env_steps = 0
        self.episodes: list[tuple[float, int]] = []
        self.notices: list[str] = []
        self.times_before = Times()
        self.times = Times()
        self.cpu_before = self.cpu_s = 0.0
        self.explore = 0.0
        self.returns: list[float] = []
        """Of the last episodes."""
        self.marks: list[tuple[float, int]] = []
        """When segments came, and steps until then."""
        self.played = 0

    def fill(self) -> None:
        self.under_way = set()
        self.times_before, self.times = self.times_before.plus(self.times), Times()
        self.cpu_before, self.cpu_s = self.cpu_before + self.cpu_s, 0.0
        self.marks = []
        super().fill()

    def note(self, played: Played) -> None:
        """Take down what came with a segment."""
        self.env_steps += played.env_steps
        self.episodes += played.episodes
        self.notices += played.notices
        self.times, self.cpu_s = played.times, played.cpu_s
        self.explore = played.explore
        self.returns = (self.returns + [score for score, _ in played.episodes])[-20:]
        self.played += played.env_steps
        now = time.monotonic()
        self.marks = [m for m in self.marks if m[0] > now - RATE_S] + [(now, self.played)]

    @property
    def speed(self) -> float:
        """Steps a second, lately."""
        if not self.marks:
            return 0.0
        (first, before), (_, now) = self.marks[0], self.marks[-1]
        return (now - before) / max(time.monotonic() - first, 1e-9)
