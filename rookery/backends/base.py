"""What plays and learns, as the loop sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from rookery.backends.progress import Share
from rookery.errors import RookeryError
from rookery.runs.checkpoint import Checkpoint

Tell = Callable[[str, str], None]
"""Takes a line for the eye, and further lines for the log."""


class Setup(NamedTuple):
    """Where and how a run computes."""

    line: str
    """Backend and actors, for the eye."""
    transport: str
    """What sums the gradients."""
    ranks: int
    """How many learn together."""
    device: str
    threads: int


class LearnerLost(RookeryError):
    """The learner is gone, and with it what it learned since the last checkpoint."""


class Backend(ABC):
    """Plays and learns. What is not needed everywhere has a body here."""

    recovers: bool = False
    """Whether `recover` may be asked to go on from a checkpoint."""

    @abstractmethod
    def setup(self) -> Setup:
        """Where and how this one computes."""

    def begin(self) -> None:  # noqa: B027
        """Start what goes on in the background."""

    @abstractmethod
    def advance(self) -> None:
        """Do a part of the work, for a moment; LearnerLost if the learner is gone."""

    @abstractmethod
    def exchange(self, interrupted: bool) -> list[Share]:
        """What was done since the last call, by every rank or every actor."""

    @abstractmethod
    def gauges(self) -> dict[str, float]:
        """What is worth reporting of the actors at this moment."""

    def status(self) -> str | None:
        """A table of who does what, where there is more to tell than in a report."""
        return None

    def random_state(self) -> dict[str, Tensor]:
        """States of random generators that belong to a checkpoint."""
        return {}

    def catch_up(self) -> None:  # noqa: B027
        """Bring the parts up to date where learning goes on in another process."""

    def recover(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint with new learners."""
        raise NotImplementedError

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody plays meanwhile."""
        yield

    @abstractmethod
    def close(self) -> None:
        """End what goes on in the background."""
