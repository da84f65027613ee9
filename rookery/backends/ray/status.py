"""The table of workers: where they run, whether they live, what they did."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rookery.backends.ray.cluster import Cluster
from rookery.backends.ray.messages import WorkerPlace
from rookery.backends.ray.slots import ActorSlot

MAX_ACTOR_ROWS = 16
"""Above this number, actors are grouped by node."""
HEADER = ("worker", "where", "state", "restarts", "steps/s", "return")


class StatusRow(NamedTuple):
    """A worker other than an actor."""

    name: str
    place: WorkerPlace | None
    restarts: int
    text: str


def status_table(
    actors: Sequence[ActorSlot],
    memory: Sequence[StatusRow],
    learners: Sequence[StatusRow],
    cluster: Cluster,
) -> str:
    """Return the status of all workers and the cluster."""
    rows = actor_rows(actors) if len(actors) <= MAX_ACTOR_ROWS else node_rows(actors)
    for row in (*learners, *memory):
        state = "starting" if row.place is None else "alive"
        rows.append((row.name, place_text(row.place), state, str(row.restarts), row.text, ""))
    healthy = sum(slot.ready for slot in actors)
    lines = [f"status at {time.strftime('%H:%M:%S')}: {healthy} of {len(actors)} actors play"]
    lines += align_columns([HEADER, *rows])
    return "\n".join([*lines, used(cluster)])


def actor_rows(actors: Sequence[ActorSlot]) -> list[tuple[str, ...]]:
    """Return a row for each actor."""
    return [
        (
            str(slot),
            place_text(slot.place),
            "alive" if slot.ready else "starting",
            str(slot.restarts),
            f"{slot.speed:,.0f}",
            mean_text(slot.returns),
        )
        for slot in actors
    ]


def node_rows(actors: Sequence[ActorSlot]) -> list[tuple[str, ...]]:
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


def place_text(place: WorkerPlace | None) -> str:
    """Return host, node and process id."""
    return "-" if place is None else f"{place.host} {place.node[:6]} pid {place.pid}"


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


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with aligned columns, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = 3
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
