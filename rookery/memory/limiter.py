"""How often stored steps are learned from: neither side may run away from the other."""

from __future__ import annotations

import sys
import threading


class Limiter:
    """Holds the number of samples per inserted row, counted from the end of the warm-up.

    The reader never draws more than is due, and writers wait while more than `tolerance` samples
    are due. Without a ratio nobody waits, but for the reader during the warm-up. Counts are of
    rows, reset rows included, so that all ranks of a run owe the same number of batches.
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
        """Count rows that have been stored."""
        with self.changed:
            self.inserted += rows
            if self.started_at is None and self.inserted >= self.warm_up:
                self.started_at = self.inserted
            self.changed.notify_all()

    def note_sampled(self, samples: int) -> None:
        """Count samples that have been drawn."""
        with self.changed:
            self.sampled += samples
            self.changed.notify_all()

    @property
    def due(self) -> float:
        """How many samples the reader is behind the ratio."""
        if self.started_at is None or self.samples_per_insert is None:
            return 0.0
        return (self.inserted - self.started_at) * self.samples_per_insert - self.sampled

    @property
    def credit(self) -> int:
        """How many samples may be drawn; without a ratio, as many as anybody could."""
        if self.started_at is None:
            return 0
        return sys.maxsize if self.samples_per_insert is None else max(0, int(self.due))

    def may_insert(self) -> bool:
        """Whether a writer need not wait."""
        return self.started_at is None or self.due <= self.tolerance

    def may_sample(self, samples: int) -> bool:
        """Whether so many samples may be drawn."""
        return self.batches_due(samples) > 0

    def batches_due(self, samples: int) -> int:
        """How many batches of so many samples may be drawn; without a ratio, one."""
        if self.started_at is None:
            return 0
        return 1 if self.samples_per_insert is None else max(0, int(self.due // samples))

    def wait_to_insert(self, timeout: float) -> bool:
        """Wait until a writer may go on; whether it may."""
        with self.changed:
            return self.changed.wait_for(self.may_insert, timeout)

    def wait_to_sample(self, samples: int, timeout: float) -> bool:
        """Wait until so many samples may be drawn; whether they may."""
        with self.changed:
            return self.changed.wait_for(lambda: self.may_sample(samples), timeout)
