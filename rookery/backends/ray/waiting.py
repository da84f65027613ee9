"""Waits for the cluster: they have limits, and say what they wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from rookery.backends.base import Tell
from rookery.backends.ray.cluster import cluster_now
from rookery.backends.ray.failures import refusal
from rookery.errors import BadInput

WARN_S = 60.0
"""After how long a wait that has no limit is told of."""


def wait_for(references: Sequence[Any], what: str, seconds: float) -> list[Any]:
    """What roles that start answer; BadInput if one fails or they take too long."""
    deadline = time.monotonic() + seconds
    waiting, answers = list(references), {}
    while waiting:
        left = deadline - time.monotonic()
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
        if not ready:
            raise too_long(what, seconds)
        try:
            answers[ready[0]] = ray.get(ready[0])
        except RayError as error:
            raise refusal(error, what) from None
    return [answers[reference] for reference in references]


def too_long(what: str, seconds: float) -> BadInput:
    """The error for a wait that was too long."""
    cluster = cluster_now()
    return BadInput(
        f"ray: waited {seconds:g} s (ray.start_seconds) for {what}; the cluster has"
        f" {cluster.describe()}, of which {cluster.free.get('CPU', 0):g} CPUs are free"
    )


class Impatience:
    """Tells once of a wait that takes long."""

    def __init__(self, tell: Tell):
        self.tell = tell
        self.due = time.monotonic() + WARN_S

    def look(self, what: str) -> None:
        """Tell of it, if it is time to."""
        if time.monotonic() > self.due:
            self.due = float("inf")
            self.tell(f"waiting for {what}", "")
