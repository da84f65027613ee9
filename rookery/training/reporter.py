"""The counters of a run, and the reporter: reports for the callbacks, and the log."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

import numpy as np
import psutil
from torch import Tensor

from rookery.backends.base import Backend, ProcessUsage, Report, WorkerProgress
from rookery.config import RunConfig
from rookery.diagnostics.random_baseline import Baseline
from rookery.machine import resident_memory_mb
from rookery.runs.callbacks import Callback, Episode, Update
from rookery.runs.files import write_text
from rookery.runs.run import Run

WINDOW = 100
"""Episodes that mean returns are over."""
EMA_DECAY = 0.99
REPORT_INTERVAL_S = 1.0
USAGE_INTERVAL_S = 0.05
TIMES = ("env_s", "inference_s", "transfer_s", "learn_s", "reduce_s", "wait_s")


@dataclass
class Progress:
    """Counters that every rank agrees on, since the run's first start."""

    env_steps: int = 0
    updates: int = 0
    samples: float | Tensor = 0.0
    """See `Report.samples`."""
    episodes: int = 0
    seconds: float = 0.0
    input_bytes: int | None = None
    """Size of a batch; None before the first."""
    return_ema: float | None = None
    returns: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    lengths: collections.deque[int] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    alike: collections.deque[bool] = field(default_factory=lambda: collections.deque(maxlen=WINDOW))
    """For each of the newest reports of a worker with episodes: True if the first worker's were the
    same."""
    truncated: collections.deque[bool] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    interrupted: bool = False
    seconds_before: float = 0.0
    """Training time before the resumption."""

    def add(self, report: Report) -> None:
        """Add what all workers did since the last report."""
        self.updates, self.samples = report.updates, report.samples
        self.input_bytes = report.input_bytes
        self.interrupted = any(worker.interrupted for worker in report.workers)
        # All ranks take the time of the first, so that they agree when time is up.
        self.seconds = self.seconds_before + report.workers[0].seconds
        first, *others = (worker.episodes for worker in report.workers)
        self.alike += [episodes == first for episodes in others if episodes]
        for worker in report.workers:
            self.env_steps += worker.env_steps
            self.episodes += len(worker.episodes)
            for episode_return, length, truncated in worker.episodes:
                self.returns.append(episode_return)
                self.lengths.append(length)
                self.truncated.append(truncated)
                before = episode_return if self.return_ema is None else self.return_ema
                self.return_ema = EMA_DECAY * before + (1 - EMA_DECAY) * episode_return

    def end_reason(self, config: RunConfig) -> str | None:
        """Return why the run is over; None if it is not."""
        if self.interrupted:
            return "interrupted"
        full, goal = len(self.returns) == WINDOW, config.stop_return
        if goal is not None and full and sum(self.returns) / WINDOW >= goal:
            return "solved"
        if self.env_steps >= config.env_steps:
            return "finished"
        if config.stop_minutes is not None and self.seconds >= 60 * config.stop_minutes:
            return "time is up"
        return None

    def columns(self) -> dict[str, Any]:
        """Return the columns of progress.csv that are known here; no means before an episode."""
        columns: dict[str, Any] = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            "episodes": self.episodes,
        }
        if self.returns:
            columns |= {
                "episode_return_mean": sum(self.returns) / len(self.returns),
                "episode_return_min": min(self.returns),
                "episode_return_max": max(self.returns),
                "episode_return_std": float(np.std(self.returns)),
                "episode_return_ema": self.return_ema,
                "episode_length_mean": sum(self.lengths) / len(self.lengths),
                "episode_length_std": float(np.std(self.lengths)),
                "episode_length_max": max(self.lengths),
            }
        if self.alike:
            columns["workers_alike"] = sum(self.alike) / len(self.alike)
        if self.truncated:
            columns["episode_truncated_share"] = sum(self.truncated) / len(self.truncated)
        return columns

    def state(self) -> dict[str, Any]:
        """Return what `load` needs to continue."""
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "return_ema": self.return_ema,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "truncated": list(self.truncated),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.rewind(state)
        self.seconds = self.seconds_before = state["seconds"]

    def rewind(self, state: dict[str, Any]) -> None:
        """Go back to an earlier state of this run; the time spent since is not taken back."""
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self.samples = float(state.get("samples", 0))
        self.episodes = state["episodes"]
        self.return_ema = state["return_ema"]
        self.returns = collections.deque(state["returns"], WINDOW)
        self.lengths = collections.deque(state["lengths"], WINDOW)
        # Checkpoints of earlier versions lack it: then it is counted from the resumption on.
        self.truncated = collections.deque(state.get("truncated", ()), WINDOW)


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
        config: RunConfig,
        progress: Progress,
        callbacks: Sequence[Callback],
        console: TextIO,
    ):
        self.run = run
        self.progress = progress
        self.callbacks = callbacks
        self.console = console
        self.status_s = config.ray.status_seconds
        self.show_status_at = time.monotonic() + self.status_s
        self.warm_up_updates = max(1, config.warm_up_updates)
        self.first_step = progress.env_steps
        self.first = self.last = self.mark()
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
        self.baseline: Baseline | None = None
        """Return of a random policy, for every report."""
        self.last_report: dict[str, float] = {}
        self.start_clock()

    def start_clock(self) -> None:
        """Start to measure the time and the CPU time of this process."""
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.usage_asked, self.last_usage = 0.0, ProcessUsage()

    def elapsed(self) -> float:
        """Return the seconds since the start or resumption in this process."""
        return time.monotonic() - self.started

    def usage(self) -> ProcessUsage:
        """Return what this process has used; CPU time and memory are up to 50 ms old: the system
        calls are slow in some containers."""
        now = time.monotonic()
        if now >= self.usage_asked + USAGE_INTERVAL_S:
            self.usage_asked = now
            cpu_s = time.process_time() - self.cpu_started
            self.last_usage = ProcessUsage(0.0, cpu_s, resident_memory_mb())
        return self.last_usage._replace(seconds=self.elapsed())

    def update(self, backend: Backend, report: Report) -> None:
        """Note a round's progress, call callbacks, and make a report if one is due."""
        progress = self.progress
        if self.run is not None:
            for worker in report.workers:
                for notice in worker.notices:
                    self.announce(notice)
                for episode in worker.episodes:
                    for callback in self.callbacks:
                        callback.on_episode(Episode(progress.env_steps, *episode))
            if progress.updates > self.updates_seen:
                self.updates_seen = progress.updates
                for callback in self.callbacks:
                    callback.on_update(Update(progress.env_steps, progress.updates))
        warm = progress.updates >= self.first.updates + self.warm_up_updates
        if self.measured_from is None and warm:
            self.measured_from = self.mark()
        self.pending = backend, report.workers
        if time.monotonic() >= self.due_at:
            self.flush()
        self.show_status(backend)

    def flush(self) -> None:
        """Make the report that is pending, if any."""
        if self.pending is None:
            return
        (backend, workers), self.pending = self.pending, None
        self.due_at = time.monotonic() + REPORT_INTERVAL_S
        elapsed = self.elapsed()
        metrics = backend.metrics(max(elapsed - self.before[0], 1e-9))
        if self.run is None:
            return
        if not self.logged_input and self.progress.input_bytes is not None:
            self.logged_input = True
            self.announce(f"input: {self.progress.input_bytes / 1e6:,.3f} MB a batch")
        columns = self.progress.columns() | self.speeds(workers, elapsed) | metrics | self.scores
        if self.baseline is not None:
            columns["random_return"] = self.baseline.mean
        self.scores = {}
        self.last_report |= columns
        records = backend.layer_records()
        for callback in self.callbacks:
            callback.on_report(columns)
            if records is not None:
                callback.on_layers(records)

    def speeds(self, workers: Sequence[WorkerProgress], elapsed: float) -> dict[str, float]:
        """Return steps per second, the machine's load and where time went since the last report."""
        progress = self.progress
        seconds, steps, cpu = self.before
        cpu_s = sum(worker.times.cpu_s for worker in workers)
        passed = max(elapsed - seconds, 1e-9)
        self.before = elapsed, progress.env_steps, cpu_s
        columns = {
            "env_steps_per_second": (progress.env_steps - steps) / passed,
            "cpu_percent": 100 * (cpu_s - cpu) / passed,
            "memory_mb": sum(worker.memory_mb for worker in workers),
            "ram_percent": psutil.virtual_memory().percent,
            **self.rates(self.last),
        }
        self.last = self.mark()
        for name in TIMES:
            mean = sum(getattr(worker.times, name) for worker in workers) / len(workers)
            columns[name] = mean - self.times_before[name]
            self.times_before[name] = mean
        return columns

    def mark(self) -> Mark:
        """Return the counters of this moment."""
        progress = self.progress
        return Mark(progress.updates, float(progress.samples), progress.seconds)

    def rates(self, before: Mark | None) -> dict[str, float]:
        """Return samples per second and milliseconds per update since `before`; empty if there was
        no update."""
        now = self.mark()
        if before is None or now.updates == before.updates or now.seconds <= before.seconds:
            return {}
        seconds = now.seconds - before.seconds
        return {
            "throughput": (now.samples - before.samples) / seconds,
            "latency_ms": 1000 * seconds / (now.updates - before.updates),
        }

    def rewind(self) -> None:
        """Discard what was reported after the checkpoint that `progress` went back to."""
        self.pending = None
        self.before = self.elapsed(), self.progress.env_steps, self.before[2]
        self.first = self.last = self.mark()
        self.measured_from = None
        for callback in self.callbacks:
            callback.on_rewind(self.progress.env_steps)

    def show_status(self, backend: Backend) -> None:
        """Print the table of workers every `status_s` seconds, and keep the newest in a file."""
        now = time.monotonic()
        if self.run is None or not self.status_s or now < self.show_status_at:
            return
        self.show_status_at = now + self.status_s
        if (table := backend.status()) is not None:
            write_text(self.run.status_path, table + "\n")
            print(table, file=self.console, flush=True)

    def announce(self, line: str, details: str = "") -> None:
        """Print a line, and add it to the run's log with its details."""
        if self.run is not None:
            self.run.log(f"{line}\n{details}")
            # In one piece: several threads may announce something.
            print(f"{line}\n", end="", file=self.console, flush=True)
