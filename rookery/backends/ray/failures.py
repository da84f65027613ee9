"""Turn Ray's errors into Rookery's."""

from __future__ import annotations

from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError, RayTaskError

from rookery.backends.base import LearnerLost
from rookery.errors import BadInput, RookeryError, RunFailed


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
