"""The rate limiter between actors that insert rows and the learner that samples them."""

from __future__ import annotations

import sys
import threading


class Limiter:
    """Keeps the number of samples per inserted row constant, from the end of the warm-up on.

    The reader never draws more than is due, and writers wait while more than `tolerance` samples
    are due. Without a ratio only the reader waits, during the warm-up. Reset rows count, so that
    all ranks of a run have the same number of batches due.
    """

    def __init__(self, samples_per_insert: float | None, warm_up: int, tolerance: float):
        self.samples_per_insert = samples_per_insert
        self.warm_up = warm_up
        self.tolerance = tolerance
        self.inserted = 0
        self.sampled = 0
        self.started_at: int | None = None
        self.changed = threading.Condition()

    def note_inserted(self, rows: int) -> None:
        """Count stored rows."""
        with self.changed:
            self.inserted += rows
            if self.started_at is None and self.inserted >= self.warm_up:
                self.started_at = self.inserted
            self.changed.notify_all()

    def note_sampled(self, samples: int) -> None:
        """Count drawn samples."""
        with self.changed:
            self.sampled += samples
            self.changed.notify_all()

    @property
    def due(self) -> float:
        """Samples that the reader may draw under the ratio; negative if it is ahead."""
        if self.started_at is None or self.samples_per_insert is None:
            return 0.0
        return (self.inserted - self.started_at) * self.samples_per_insert - self.sampled

    @property
    def credit(self) -> int:
        """Number of samples that may be drawn; without a ratio, `sys.maxsize`."""
        if self.started_at is None:
            return 0
        return sys.maxsize if self.samples_per_insert is None else max(0, int(self.due))

    def may_insert(self) -> bool:
        """True if a writer need not wait."""
        return self.started_at is None or self.due <= self.tolerance

    def batches_due(self, samples: int) -> int:
        """Return how many batches of `samples` samples may be drawn; without a ratio, 1."""
        if self.started_at is None:
            return 0
        return 1 if self.samples_per_insert is None else max(0, int(self.due // samples))

    def wait_to_insert(self, timeout: float) -> bool:
        """Wait until a writer may insert; return False on a timeout."""
        with self.changed:
            return self.changed.wait_for(self.may_insert, timeout)

    def wait_to_sample(self, samples: int, timeout: float) -> bool:
        """Wait until `samples` samples may be drawn; return False on a timeout."""
        with self.changed:
            return self.changed.wait_for(lambda: self.batches_due(samples) > 0, timeout)
