"""Waits for workers, and Ray's errors as Rookery's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError, RayTaskError

from rookery.backends.base import LearnerLost, Log
from rookery.backends.ray.cluster import cluster_now
from rookery.errors import BadInput, RookeryError, RunFailed

WARN_S = 60.0
"""Time after which a wait without limit is logged."""


def raise_if_weights_lost(error: RayError) -> None:
    """Raise LearnerLost if an actor's weights are lost, which lay on the learner's node."""
    if isinstance(error, ObjectLostError):
        raise LearnerLost("the weights were lost with the learner's node", str(error)) from None


def raise_cause(error: RayError) -> None:
    """Raise the RookeryError that a worker raised, unless its environment failed."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, RookeryError) and not isinstance(cause, RunFailed):
        raise cause from None


def start_failure(error: RayError, what: str) -> BadInput:
    """Return the error for a worker that could not start."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    reason = str(cause) if isinstance(cause, RookeryError) else reason_of(error)
    return BadInput(f"ray: {what} could not start: {reason}", str(error))


def reason_of(error: RayError) -> str:
    """Return in a line why a worker was lost."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    text = " ".join(str(error).split())
    if "node has died" in text or "node was terminated" in text:
        return "its node died"
    if "died unexpectedly" in text or "process has died" in text or "worker died" in text:
        return "its process died"
    return text[:300]


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
