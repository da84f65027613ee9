"""The interface of a backend: what the training loop and the reporter use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from rookery.data.layer_records import LayerRecords
from rookery.data.steps import FinishedEpisode
from rookery.envs.wrappers.observation_record import ObservationRecord
from rookery.errors import RookeryError
from rookery.learning.actor import Times
from rookery.learning.diagnosis import UpdateEvidence
from rookery.learning.learner import Tensors
from rookery.runs.checkpoint import Checkpoint

Log = Callable[[str, str], None]
"""Takes a line for the console and the log, and details for the log alone."""


class Setup(NamedTuple):
    """Description of a backend for the log and the result."""

    backend: str
    description: str
    """Backend and number of actors."""
    transport: str
    """Transport of the gradient sums of several learners."""
    ranks: int
    """Number of learners."""
    device: str
    threads: int
    engine: str
    """Name of the engine that steps the environments."""
    weights: int
    """Number of the network's parameters."""
    memory: str | None
    """A line about the replay memory, if there is one."""


class ProcessUsage(NamedTuple):
    """What a process has used since its start or resumption."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    """CPU time of all its threads."""
    memory_mb: float = 0.0
    """In RAM now."""


class WorkerProgress(NamedTuple):
    """Progress of one rank or actor since the last report; times are since the backend started."""

    env_steps: int
    episodes: list[FinishedEpisode]
    notices: list[str]
    """Lines for the log."""
    times: Times
    interrupted: bool
    seconds: float
    memory_mb: float
    """In RAM now, of its process; 0 for a thread of a process that another worker counts."""


class Report(NamedTuple):
    """Progress of a backend since the last report."""

    workers: list[WorkerProgress]
    updates: int
    samples: float | Tensor
    """Rows, or windows of a replay, learned from over all ranks. A learner's own counter, which is
    read when a report is made and not every round: reading it waits for the GPU."""
    input_bytes: int | None
    """Size of a batch; None before the first."""


class CheckpointState(NamedTuple):
    """The contents of a checkpoint, without the counters of the training loop."""

    tensors: Tensors
    counts: dict[str, Any]


class LearnerLost(RookeryError):
    """The learner died, and with it what it learned since the last checkpoint."""


class Backend(ABC):
    """Plays and learns."""

    recovers: bool = False
    """True if `restore` can replace a lost learner during the run."""
    collective: bool = False
    """True if `state` needs all ranks to take part."""

    @abstractmethod
    def setup(self) -> Setup:
        """Return where and how this backend computes."""

    def start(self) -> None:  # noqa: B027
        """Start what runs in the background."""

    @abstractmethod
    def advance(self, env_steps: int) -> None:
        """Play and learn for one round, `env_steps` into the run; LearnerLost if it died."""

    @abstractmethod
    def report(self, interrupted: bool, usage: ProcessUsage) -> Report:
        """Return the progress since the last call, with the usage of this process; ranks exchange
        theirs."""

    @abstractmethod
    def metrics(self, seconds: float) -> dict[str, float]:
        """Return means of the learner's and the actors' metrics over the `seconds` since the last
        call; Diverged if one is NaN or infinite."""

    @abstractmethod
    def state(self) -> CheckpointState | None:
        """Return the contents of a checkpoint; None on ranks other than the first."""

    @abstractmethod
    def restore(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint; one of another network or optimizer is refused."""

    def layer_records(self) -> LayerRecords | None:
        """Return histograms and watched layers since the last call; None if there are none."""
        return None

    def evidence(self) -> UpdateEvidence | None:
        """Return what repeats the last update that was measured; None if it is not known here."""
        return None

    def observations(self) -> ObservationRecord | None:
        """Return the newest observations of the run's first environment, which `inspect_every`
        makes it record; None if they cannot be had now."""
        return None

    def status(self) -> str | None:
        """Return a table of the workers, if the backend has more to show than a report."""
        return None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the actors while the body runs."""
        yield

    @abstractmethod
    def close(self) -> None:
        """Stop actors and learners and close the environments."""
