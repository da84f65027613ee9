"""What went wrong with a role, told from what Ray says."""

from __future__ import annotations

from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError, RayTaskError

from rookery.backends.base import LearnerLost
from rookery.errors import BadInput, EnvironmentFailure, RookeryError


def weights_lost(error: RayError) -> None:
    """Raise LearnerLost if what an actor was to play with is gone: it lay on the learner's node."""
    if isinstance(error, ObjectLostError):
        raise LearnerLost("the weights were lost with the learner's node", str(error)) from None


def raise_told(error: RayError) -> None:
    """Raise what a role says is wrong with the run itself."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, RookeryError) and not isinstance(cause, EnvironmentFailure):
        raise cause from None


def refusal(error: RayError, what: str) -> BadInput:
    """The error for a role that could not start."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    told = str(cause) if isinstance(cause, RookeryError) else reason_of(error)
    return BadInput(f"ray: {what} could not start: {told}", str(error))


def reason_of(error: RayError) -> str:
    """Why a role was lost, in a line."""
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
