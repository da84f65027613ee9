"""What a run writes down while it goes: reports, checkpoints, its log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from torch import Tensor

from rookery.backends.components import Parts
from rookery.backends.progress import Share
from rookery.runs import checkpoint
from rookery.runs.files import write_text
from rookery.runs.run import Run
from rookery.runs.sinks import ConsoleSink, CsvSink, Sinks, TensorBoardSink

REPORT_INTERVAL_S = 1.0
STOP_INTERVAL_S = 0.2
TIMES = ("env_s", "inference_s", "transfer_s", "learn_s", "reduce_s", "wait_s")


class Mark(NamedTuple):
    """How far a run was at a moment."""

    updates: int
    samples: float
    seconds: float


Gauges = Callable[[], dict[str, float]]


class Notices:
    """Lines for the eye and the log; those from before there is a journal wait for it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str]] = []
        self.journal: Journal | None = None

    def __call__(self, line: str, details: str) -> None:
        """Tell, now or once there is a journal."""
        if self.journal is None:
            self.waiting.append((line, details))
        else:
            self.journal.tell(line, details)

    def go_to(self, journal: Journal) -> None:
        """Tell the journal, from now on and what has waited."""
        self.journal = journal
        for line, details in self.waiting:
            journal.tell(line, details)


class Journal:
    """The writer of a run's folder, on rank 0; on other ranks (`run` is None) it writes nothing."""

    def __init__(
        self,
        run: Run | None,
        env_steps: int,
        keep_checkpoints: int,
        resumed_at: int | None = None,
        console: TextIO | None = None,
        plain: bool = False,
        status_s: float = 0.0,
    ):
        self.run = run
        self.env_steps = env_steps
        self.plain = plain
        self.status_s = status_s
        self.show_at = time.monotonic() + status_s
        self.keep_checkpoints = keep_checkpoints
        self.first_step = resumed_at or 0
        self.saved_at: int | None = None
        self.before: tuple[float, int, float] = (0.0, self.first_step, 0.0)
        self.times_before = dict.fromkeys(TIMES, 0.0)
        self.input_told = False
        self.first: Mark | None = None
        self.last: Mark | None = None
        self.measured_from: Mark | None = None
        self.due_at = 0.0
        self.look_at = 0.0
        self.last_report: dict[str, float] = {}
        self.pending: tuple[Parts, list[Share], Gauges] | None = None
        self.scores: dict[str, float] = {}
        self.best: tuple[int, float] | None = None
        if run is not None:
            self.console = console or sys.stdout
            self.sinks = self.open_sinks(resumed_at)

    def open_sinks(self, resumed_at: int | None) -> Sinks:
        """Where reports go, without those past the step a run goes on from."""
        assert self.run is not None
        console = ConsoleSink(
            self.env_steps, self.console, first_step=resumed_at or 0, plain=self.plain
        )
        return Sinks(
            [
                CsvSink(self.run.progress_path, resumed_at),
                TensorBoardSink(self.run.path, resumed_at),
                console,
            ]
        )

    def begin(self, parts: Parts) -> None:
        """Note where this sitting starts."""
        self.first = self.last = mark_of(parts)

    def report(self, parts: Parts, shares: list[Share], gauges: Gauges) -> None:
        """Write a report, unless the last one was a moment ago."""
        self.pending = parts, shares, gauges
        assert self.first is not None
        warm = self.first.updates + max(1, parts.config.warm_up_updates)
        if self.measured_from is None and parts.learner.updates >= warm:
            self.measured_from = mark_of(parts)
        if time.monotonic() >= self.due_at:
            self.flush()

    def flush(self) -> None:
        """Write the report that is pending, if any."""
        if self.pending is None:
            return
        parts, shares, gauges = self.pending
        self.pending = None
        self.due_at = time.monotonic() + REPORT_INTERVAL_S
        metrics = parts.learner.take_metrics()
        notices = parts.learner.take_notices()
        if self.run is None:
            return
        for line in notices:
            self.announce(line)
        if not self.input_told and parts.learner.input_bytes is not None:
            self.input_told = True
            self.announce(f"input: {parts.learner.input_bytes / 1e6:,.3f} MB a batch")
        columns = parts.progress.report() | self.speeds(parts, shares)
        columns |= metrics | {"learning_rate": parts.learner.learning_rate} | gauges()
        columns |= self.scores
        self.scores = {}
        self.last_report |= columns
        self.sinks.write(parts.progress.env_steps, columns)

    def speeds(self, parts: Parts, shares: list[Share]) -> dict[str, float]:
        """Steps per second, the machine's load and the time split since the last report."""
        progress = parts.progress
        seconds, steps, cpu = self.before
        cpu_s = sum(share.cpu_s for share in shares)
        elapsed = progress.elapsed()
        passed = max(elapsed - seconds, 1e-9)
        self.before = elapsed, progress.env_steps, cpu_s
        columns = {
            "env_steps_per_second": (progress.env_steps - steps) / passed,
            "cpu_percent": 100 * (cpu_s - cpu) / passed,
            "ram_percent": ram_percent(),
        }
        now = mark_of(parts)
        assert self.last is not None
        columns |= rates(self.last, now)
        self.last = now
        for name in TIMES:
            total = sum(getattr(share, name) for share in shares) / len(shares)
            columns[name] = total - self.times_before[name]
            self.times_before[name] = total
        return columns | parts.memory.take_report(passed)

    def measured(self, parts: Parts) -> dict[str, float]:
        """Throughput and latency after the warm-up; nothing if the run ended before."""
        return {} if self.measured_from is None else rates(self.measured_from, mark_of(parts))

    def note_scores(self, step: int, scores: dict[str, float]) -> None:
        """Put the scores of an evaluation into the next report, and remember the best."""
        mean = scores["eval_return_mean"]
        self.scores = scores
        if self.best is None or mean > self.best[1]:
            self.best = step, mean
        self.announce(
            f"evaluation at step {step:,}: mean return {mean:.1f} over"
            f" {scores['eval_episodes']} episodes, epsilon {scores['eval_epsilon']:g}"
            + ("  (best so far)" if self.best == (step, mean) else "")
        )

    def save(self, step: int, tensors: dict[str, dict[str, Tensor]], meta: dict[str, Any]) -> None:
        """Write a checkpoint, with the report that belongs to it first."""
        assert self.run is not None
        self.flush()
        path = checkpoint.save(
            self.run.checkpoints,
            step,
            tensors,
            meta | {"best": self.best},
            keep=self.keep_checkpoints,
            protect=() if self.best is None else (self.best[0],),
        )
        checkpoint.label(self.run.checkpoints, "last", step)
        if self.best is not None and self.best[0] == step:
            checkpoint.label(self.run.checkpoints, "best", step)
        self.log(f"checkpoint {path.name}")

    def asked_to_stop(self) -> bool:
        """Whether somebody put the file `stop` into the run's folder; it is taken away."""
        now = time.monotonic()
        if self.run is None or now < self.look_at:
            return False
        self.look_at = now + STOP_INTERVAL_S
        if not self.run.stop_path.exists():
            return False
        self.run.stop_path.unlink()
        return True

    def show(self, status: Callable[[], str | None]) -> None:
        """Show a table of who does what, and keep the newest in a file, if it is time for one."""
        now = time.monotonic()
        if self.run is None or not self.status_s or now < self.show_at:
            return
        self.show_at = now + self.status_s
        if (table := status()) is not None:
            write_text(self.run.status_path, table + "\n")
            print(table, file=self.console, flush=True)

    def newest_checkpoint(self) -> checkpoint.Checkpoint:
        """What the run can go back to."""
        assert self.run is not None
        return checkpoint.newest_whole(self.run.checkpoints)

    def rewind(self, parts: Parts, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint in the middle of a sitting: what was reported after it goes."""
        assert self.run is not None
        parts.progress.rewind(saved.meta)
        self.pending = None
        self.saved_at = saved.step
        self.before = parts.progress.elapsed(), saved.step, self.before[2]
        self.best = saved.meta.get("best")
        self.last = mark_of(parts)
        self.measured_from = None
        self.first = self.last
        self.sinks.close()
        self.sinks = self.open_sinks(saved.step)

    def log(self, line: str) -> None:
        """Add a line to the run's log."""
        if self.run is not None:
            self.run.log(line)

    def tell(self, line: str, details: str) -> None:
        """Show a line, and add it to the run's log with its details."""
        self.log(f"{line}\n{details}")
        self.show_line(line)

    def announce(self, line: str) -> None:
        """Add a line to the run's log, and show it."""
        self.log(line)
        self.show_line(line)

    def show_line(self, line: str) -> None:
        """Show a line in one piece: several threads may have something to tell."""
        if self.run is not None:
            print(f"{line}\n", end="", file=self.console, flush=True)

    def close(self) -> None:
        """Close the files."""
        if self.run is not None:
            self.sinks.close()


def mark_of(parts: Parts) -> Mark:
    """How far the run is, over all ranks."""
    learner = parts.learner
    return Mark(learner.updates, float(learner.samples), parts.progress.seconds)


def rates(before: Mark, now: Mark) -> dict[str, float]:
    """Samples learned from per second, and milliseconds an update took with all that goes with it;
    nothing if there was none."""
    updates, seconds = now.updates - before.updates, now.seconds - before.seconds
    if not updates or seconds <= 0:
        return {}
    return {
        "throughput": (now.samples - before.samples) / seconds,
        "latency_ms": 1000 * seconds / updates,
    }


def ram_percent() -> float:
    """Share of the machine's memory in use."""
    pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            available = next(int(x.split()[1]) for x in file if x.startswith("MemAvailable"))
        free = available * 1024 // os.sysconf("SC_PAGE_SIZE")
    except (OSError, StopIteration):
        pass
    return 100 * (1 - free / pages)
