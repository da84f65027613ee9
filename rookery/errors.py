"""Exceptions, each with the exit status of the command that it ends."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class RookeryError(Exception):
    """A failure that is reported in one line; `details` go to the log only."""

    exit_status = 1

    def __init__(self, message: str, details: str = ""):
        super().__init__(message)
        self.details = details


class BadInput(RookeryError):
    """A setting, a file or an environment that cannot be used as it is."""

    exit_status = 2


class RunFailed(RookeryError):
    """A run that had started cannot continue: its environment raised or returned a value outside of
    its space, or workers died too often."""


class Diverged(RookeryError):
    """The loss or the gradient became NaN or infinite."""

    exit_status = 3

    def __init__(self, message: str, details: str = "", evidence: Any = None):
        super().__init__(message, details)
        self.evidence = evidence
        """Batch and weights of the update that failed, if they are known."""


def require(condition: object, message: str) -> None:
    """Raise BadInput with `message` unless `condition` holds."""
    if not condition:
        raise BadInput(message)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean "X"?' for the known name closest to `name`, or ''."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{close[0]}"?' if close else ""


def missing_extra(what: str, extra: str) -> BadInput:
    """Return the error for an optional dependency that is not installed."""
    return BadInput(f"{what} needs an extra that is not installed: pip install 'rookery[{extra}]'")
