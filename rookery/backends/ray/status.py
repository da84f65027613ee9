"""Who does what where, as a table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rookery.backends.ray.cluster import Cluster
from rookery.backends.ray.messages import Where
from rookery.backends.ray.slots import ActorPost

MOST_ROWS = 16
"""More actors than these are told of by node."""
HEADER = ("role", "where", "state", "restarts", "steps/s", "return")


class StatusRow(NamedTuple):
    """A role other than an actor."""

    name: str
    where: Where | None
    restarts: int
    told: str


def table(
    actors: Sequence[ActorPost],
    memory: Sequence[StatusRow],
    learners: Sequence[StatusRow],
    cluster: Cluster,
) -> str:
    """The whole status."""
    rows = actor_rows(actors) if len(actors) <= MOST_ROWS else node_rows(actors)
    for row in (*learners, *memory):
        state = "starting" if row.where is None else "alive"
        rows.append((row.name, place(row.where), state, str(row.restarts), row.told, ""))
    healthy = sum(post.ready for post in actors)
    lines = [f"status at {time.strftime('%H:%M:%S')}: {healthy} of {len(actors)} actors play"]
    lines += aligned([HEADER, *rows])
    return "\n".join([*lines, used(cluster)])


def actor_rows(actors: Sequence[ActorPost]) -> list[tuple[str, ...]]:
    """A row for each actor."""
    return [
        (
            str(post),
            place(post.where),
            "alive" if post.ready else "starting",
            str(post.restarts),
            f"{post.speed:,.0f}",
            mean(post.returns),
        )
        for post in actors
    ]


def node_rows(actors: Sequence[ActorPost]) -> list[tuple[str, ...]]:
    """A row for the actors of each node."""
    groups: dict[str, list[ActorPost]] = defaultdict(list)
    for post in actors:
        groups[post.where.host + " " + post.where.node[:6] if post.where else "-"].append(post)
    return [
        (
            f"{len(posts)} actors",
            where,
            "starting" if where == "-" else "alive",
            str(sum(post.restarts for post in posts)),
            f"{sum(post.speed for post in posts):,.0f}",
            mean([score for post in posts for score in post.returns]),
        )
        for where, posts in sorted(groups.items())
    ]


def place(where: Where | None) -> str:
    """Host, node and process."""
    return "-" if where is None else f"{where.host} {where.node[:6]} pid {where.pid}"


def mean(returns: Sequence[float]) -> str:
    return f"{sum(returns) / len(returns):.1f}" if returns else "-"


def used(cluster: Cluster) -> str:
    """Resources in use, of those there are."""
    parts = []
    for name in ("CPU", "GPU", "object_store_memory"):
        total = cluster.amount(name)
        if total:
            busy = total - cluster.free.get(name, 0.0)
            scale, unit = (1e9, "GB of objects") if "memory" in name else (1, f"{name}s")
            parts.append(f"{busy / scale:.3g} of {total / scale:.3g} {unit}")
    return f"{cluster.nodes_text}; in use: {', '.join(parts)}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = 3
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
