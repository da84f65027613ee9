"""The driver's view of its workers: slots that are refilled when a process dies, the counters
of replay memories, and the status table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rookery.backends.common import ActorTally
from rookery.backends.ray.cluster import Cluster
from rookery.backends.ray.messages import ReplayStatus, SegmentInfo, WorkerPlace
from rookery.runs.files import aligned

RATE_S = 5.0
"""Time over which an actor's speed is averaged."""
RECENT_EPISODES = 20
MAX_ACTOR_ROWS = 16
"""Above this number, actors are grouped by node."""
StatusRow = tuple[str, ...]
HEADER = ("worker", "where", "state", "restarts", "steps/s", "return")


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
        self.tally.add(played, lag)
        returns = [episode.episode_return for episode in played.episodes]
        self.returns = (self.returns + returns)[-RECENT_EPISODES:]
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


class ReplayStatistics:
    """The counters of all replay memories of a run; empty without a replay."""

    def __init__(self) -> None:
        self.statuses: dict[int, ReplayStatus] = {}
        """By number; a memory that replaces a lost one has a number of its own."""
        self.lost: set[int] = set()
        """Numbers of memories that were lost."""
        self.totals = [0, 0, 0]
        """Rows inserted, sampled and trained on at the last report."""

    @property
    def living(self) -> list[ReplayStatus]:
        """Counters of the memories that were not lost."""
        return [status for number, status in self.statuses.items() if number not in self.lost]

    @property
    def memory_mb(self) -> float:
        """In RAM, of the processes that only have a replay memory."""
        return sum(status.memory_mb for status in self.living)

    def take_report(self, seconds: float) -> dict[str, float]:
        """Return the same columns as a replay memory does, over the last `seconds`.

        A lost memory's counters stay in the sums, but it does not count for how full memory is.
        """
        if not self.statuses:
            return {}
        counters = [(each.inserted, each.sampled, each.trained) for each in self.statuses.values()]
        totals = [sum(column) for column in zip(*counters, strict=True)]
        rates = [(now - before) / seconds for now, before in zip(totals, self.totals, strict=True)]
        self.totals = totals
        living = self.living
        count = max(1, len(living))
        return {
            "added_per_second": rates[0],
            "sampled_per_second": rates[1],
            "trained_per_second": rates[2],
            "replay_fill": sum(status.fill for status in living) / count,
            "replay_age_mean": sum(status.age for status in living) / count,
        }


def status_table(actors: Sequence[ActorSlot], others: Sequence[StatusRow], cluster: Cluster) -> str:
    """Return the status of all workers and the cluster."""
    healthy = sum(slot.ready for slot in actors)
    lines = [f"status at {time.strftime('%H:%M:%S')}: {healthy} of {len(actors)} actors play"]
    rows = [
        status_row(str(a), a.place, a.restarts, f"{a.speed:,.0f}", mean_text(a.returns))
        for a in actors
    ]
    if len(actors) > MAX_ACTOR_ROWS:
        rows = node_rows(actors)
    lines += aligned([HEADER, *rows, *others], left=3)
    return "\n".join([*lines, used(cluster)])


def status_row(
    name: str, place: WorkerPlace | None, restarts: int, done: str, returns: str = ""
) -> StatusRow:
    """Return a worker's row of the status table."""
    state = "starting" if place is None else "alive"
    where = "-" if place is None else f"{place.host} {place.node[:6]} pid {place.pid}"
    return name, where, state, str(restarts), done, returns


def node_rows(actors: Sequence[ActorSlot]) -> list[StatusRow]:
    """Return a row for the actors of each node."""
    groups: dict[str, list[ActorSlot]] = defaultdict(list)
    for slot in actors:
        groups[slot.place.host + " " + slot.place.node[:6] if slot.place else "-"].append(slot)
    return [
        (
            f"{len(slots)} actors",
            where,
            "starting" if where == "-" else "alive",
            str(sum(slot.restarts for slot in slots)),
            f"{sum(slot.speed for slot in slots):,.0f}",
            mean_text([score for slot in slots for score in slot.returns]),
        )
        for where, slots in sorted(groups.items())
    ]


def mean_text(returns: Sequence[float]) -> str:
    return f"{sum(returns) / len(returns):.1f}" if returns else "-"


def used(cluster: Cluster) -> str:
    """Return which resources are in use."""
    parts = []
    for name in ("CPU", "GPU", "object_store_memory"):
        total = cluster.amount(name)
        if total:
            busy = total - cluster.free.get(name, 0.0)
            scale, unit = (1e9, "GB of objects") if "memory" in name else (1, f"{name}s")
            parts.append(f"{busy / scale:.3g} of {total / scale:.3g} {unit}")
    return f"{cluster.nodes_text}; in use: {', '.join(parts)}"
