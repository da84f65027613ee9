"""The reporter: turns a backend's progress into reports for the callbacks, and writes the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

from rookery.backends.base import Backend, Report, WorkerProgress
from rookery.runs.callbacks import Callbacks, Episode, Update
from rookery.runs.files import write_text
from rookery.runs.run import Run
from rookery.training.progress import Progress

REPORT_INTERVAL_S = 1.0
TIMES = ("env_s", "inference_s", "transfer_s", "learn_s", "reduce_s", "wait_s")


class Mark(NamedTuple):
    """Counters of a run at one moment."""

    updates: int
    samples: float
    seconds: float


class Reporter:
    """Reports on rank 0; on other ranks (`run` is None) it writes nothing."""

    def __init__(
        self,
        run: Run | None,
        progress: Progress,
        callbacks: Callbacks,
        console: TextIO,
        warm_up_updates: int,
        status_s: float,
    ):
        self.run = run
        self.progress = progress
        self.callbacks = callbacks
        self.console = console
        self.status_s = status_s
        self.show_status_at = time.monotonic() + status_s
        self.warm_up_updates = max(1, warm_up_updates)
        self.first_step = progress.env_steps
        self.first = self.last = mark_of(progress)
        self.measured_from: Mark | None = None
        """End of the warm-up, from which throughput and latency are measured."""
        self.before: tuple[float, int, float] = (0.0, self.first_step, 0.0)
        """Seconds, steps and CPU time at the last report."""
        self.times_before = dict.fromkeys(TIMES, 0.0)
        self.due_at = 0.0
        self.pending: tuple[Backend, list[WorkerProgress]] | None = None
        self.logged_input = False
        self.updates_seen = progress.updates
        self.scores: dict[str, float] = {}
        """Columns of an evaluation, for the next report."""
        self.last_report: dict[str, float] = {}

    # ---------------------------------------------------------------- reports

    def update(self, backend: Backend, report: Report) -> None:
        """Note a round's progress, and make a report if one is due."""
        progress = self.progress
        if self.run is not None:
            self.call_back(report)
        warm = progress.updates >= self.first.updates + self.warm_up_updates
        if self.measured_from is None and warm:
            self.measured_from = mark_of(progress)
        self.pending = backend, report.workers
        if time.monotonic() >= self.due_at:
            self.flush()
        self.show_status(backend.status)

    def call_back(self, report: Report) -> None:
        """Log the workers' notices, and call callbacks for episodes and updates."""
        progress = self.progress
        for worker in report.workers:
            for notice in worker.notices:
                self.announce(notice)
            for episode_return, length in worker.episodes:
                self.callbacks.on_episode(Episode(progress.env_steps, episode_return, length))
        if progress.updates > self.updates_seen:
            self.updates_seen = progress.updates
            self.callbacks.on_update(Update(progress.env_steps, progress.updates))

    def flush(self) -> None:
        """Make the report that is pending, if any."""
        if self.pending is None:
            return
        (backend, workers), self.pending = self.pending, None
        self.due_at = time.monotonic() + REPORT_INTERVAL_S
        elapsed = self.progress.elapsed()
        metrics = backend.metrics(max(elapsed - self.before[0], 1e-9))
        if self.run is None:
            return
        if not self.logged_input and self.progress.input_bytes is not None:
            self.logged_input = True
            self.announce(f"input: {self.progress.input_bytes / 1e6:,.3f} MB a batch")
        columns = self.progress.columns() | self.speeds(workers, elapsed) | metrics | self.scores
        self.scores = {}
        self.last_report |= columns
        self.callbacks.on_report(columns)

    def speeds(self, workers: Sequence[WorkerProgress], elapsed: float) -> dict[str, float]:
        """Return steps per second, the machine's load and where time went since the last report."""
        progress = self.progress
        seconds, steps, cpu = self.before
        cpu_s = sum(worker.cpu_s for worker in workers)
        passed = max(elapsed - seconds, 1e-9)
        self.before = elapsed, progress.env_steps, cpu_s
        columns = {
            "env_steps_per_second": (progress.env_steps - steps) / passed,
            "cpu_percent": 100 * (cpu_s - cpu) / passed,
            "ram_percent": ram_percent(),
        }
        now = mark_of(progress)
        columns |= rates(self.last, now)
        self.last = now
        for name in TIMES:
            mean = sum(getattr(worker, name) for worker in workers) / len(workers)
            columns[name] = mean - self.times_before[name]
            self.times_before[name] = mean
        return columns

    def measured(self) -> dict[str, float]:
        """Return throughput and latency after the warm-up; empty if the run ended before."""
        start = self.measured_from
        return {} if start is None else rates(start, mark_of(self.progress))

    def rewind(self) -> None:
        """Discard what was reported after the checkpoint that `progress` went back to."""
        self.pending = None
        self.before = self.progress.elapsed(), self.progress.env_steps, self.before[2]
        self.first = self.last = mark_of(self.progress)
        self.measured_from = None
        self.callbacks.on_rewind(self.progress.env_steps)

    def show_status(self, status: Callable[[], str | None]) -> None:
        """Print the table of workers every `status_s` seconds, and keep the newest in a file."""
        now = time.monotonic()
        if self.run is None or not self.status_s or now < self.show_status_at:
            return
        self.show_status_at = now + self.status_s
        if (table := status()) is not None:
            write_text(self.run.status_path, table + "\n")
            print(table, file=self.console, flush=True)

    # ---------------------------------------------------------------- log

    def log(self, line: str) -> None:
        """Add a line to the run's log."""
        if self.run is not None:
            self.run.log(line)

    def announce(self, line: str, details: str = "") -> None:
        """Print a line, and add it to the run's log with its details."""
        self.log(f"{line}\n{details}" if details else line)
        if self.run is not None:
            # In one piece: several threads may announce something.
            print(f"{line}\n", end="", file=self.console, flush=True)


def mark_of(progress: Progress) -> Mark:
    """Return the counters of this moment."""
    return Mark(progress.updates, float(progress.samples), progress.seconds)


def rates(before: Mark, now: Mark) -> dict[str, float]:
    """Return samples per second and milliseconds per update between two moments; empty if there
    was no update."""
    updates, seconds = now.updates - before.updates, now.seconds - before.seconds
    if not updates or seconds <= 0:
        return {}
    return {
        "throughput": (now.samples - before.samples) / seconds,
        "latency_ms": 1000 * seconds / updates,
    }


def ram_percent() -> float:
    """Return the share of the machine's memory in use."""
    pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            available = next(int(x.split()[1]) for x in file if x.startswith("MemAvailable"))
        free = available * 1024 // os.sysconf("SC_PAGE_SIZE")
    except (OSError, StopIteration):
        pass
    return 100 * (1 - free / pages)
