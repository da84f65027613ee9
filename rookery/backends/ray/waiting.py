"""Waits for workers, with time limits and errors that name what was waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from rookery.backends.base import Log
from rookery.backends.ray.cluster import cluster_now
from rookery.backends.ray.failures import start_failure
from rookery.errors import BadInput

WARN_S = 60.0
"""Time after which a wait without limit is logged."""


def wait_for(references: Sequence[Any], what: str, seconds: float) -> list[Any]:
    """Return the answers of workers that start; BadInput if one fails or they take too long."""
    deadline = time.monotonic() + seconds
    waiting, answers = list(references), {}
    while waiting:
        left = deadline - time.monotonic()
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
        if not ready:
            raise timed_out(what, seconds)
        try:
            answers[ready[0]] = ray.get(ready[0])
        except RayError as error:
            raise start_failure(error, what) from None
    return [answers[reference] for reference in references]


def timed_out(what: str, seconds: float) -> BadInput:
    """Return the error for a wait that was too long."""
    cluster = cluster_now()
    return BadInput(
        f"ray: timed out after {seconds:g} s (ray.start_seconds) waiting for {what}; the cluster"
        f" has {cluster.describe()}, of which {cluster.free.get('CPU', 0):g} CPUs are free"
    )


class SlowWaitLog:
    """Logs once that a wait takes long."""

    def __init__(self, log: Log):
        self.log = log
        self.due = time.monotonic() + WARN_S

    def check(self, what: str) -> None:
        """Log the wait, if it has taken a minute."""
        if time.monotonic() > self.due:
            self.due = float("inf")
            self.log(f"waiting for {what}", "")
