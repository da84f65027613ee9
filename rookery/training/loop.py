"""The training loop of a process: advance, report, evaluate, save, until the run is over."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from rookery.backends.base import LearnerLost, Setup
from rookery.backends.factory import make_backend
from rookery.backends.ranks.launch import CONSOLE
from rookery.config import RunConfig
from rookery.diagnostics.profiling import Profile
from rookery.errors import RookeryError, RunFailed
from rookery.learning.reduce import Reducer
from rookery.machine import host_and_cores, keep_freed_memory, versions
from rookery.processes import STOP_SIGNALS, handling_signals
from rookery.reports import draw_split
from rookery.runs import checkpoint
from rookery.runs.callbacks import Callback, Callbacks
from rookery.runs.console import ConsoleSink
from rookery.runs.run import Run
from rookery.runs.sinks import CsvSink, TensorBoardSink
from rookery.training.checkpointer import Checkpointer
from rookery.training.evaluation import Evaluation
from rookery.training.progress import Progress
from rookery.training.reporter import Reporter

STOP_INTERVAL_S = 0.2
"""Time between looks for the file `stop`."""


class TrainingLoop:
    """One process of a run: its backend, reporter, checkpointer and evaluation.

    `path` is the run's folder, and `run` the same as an object on rank 0, which writes to it.
    """

    def __init__(
        self,
        run: Run | None,
        path: Path,
        config: RunConfig,
        reducer: Reducer,
        device: torch.device,
        resuming: bool,
        console: TextIO | None = None,
        callbacks: Sequence[Callback] = (),
    ):
        keep_freed_memory()
        self.run_folder, self.config, self.reducer = run, config, reducer
        saved = checkpoint.load_newest(path / "checkpoints") if resuming else None
        self.progress = Progress()
        if saved is not None:
            self.progress.load(saved.meta)
        console = console or sys.stdout
        own = [*report_writers(run, config, saved, reducer, console), *callbacks] if run else []
        self.reporter = Reporter(
            run,
            self.progress,
            Callbacks(own),
            console,
            config.warm_up_updates,
            config.ray.status_seconds,
        )
        try:
            self.backend = make_backend(config, reducer, device, saved, self.reporter.announce)
        except RookeryError as error:
            self.reporter.callbacks.close()
            if isinstance(error, RunFailed):
                raise logged(run, error) from None
            if run is not None and not resuming:
                run.remove()
            raise
        self.setup = self.backend.setup()
        self.progress.started = time.monotonic()
        self.checkpointer = Checkpointer(run, config, self.progress, self.reporter, saved)
        self.evaluation = None if config.eval_steps is None else Evaluation(config, device)
        self.profile = Profile(run.path / "profile") if run and config.profile else None
        for line in opening_lines(config, self.setup, saved):
            self.reporter.announce(line)

    def run(self) -> None:
        """Play and learn until the run is over, and write its result."""
        backend, progress = self.backend, self.progress
        try:
            if self.run_folder is not None:
                self.reporter.callbacks.on_start(self.run_folder)
            with interrupts(self.run_folder) as interrupted:
                try:
                    backend.start()
                    if backend.recovers and progress.env_steps == 0:
                        self.save()
                    status = progress.end_reason(self.config)
                    while status is None:
                        before = progress.env_steps
                        try:
                            backend.advance(before)
                            status = self.finish_round(before, interrupted())
                        except LearnerLost as lost:
                            self.rewind(lost)
                except RunFailed:
                    # The weights are those of the last whole update: worth keeping. On several
                    # ranks the others cannot take part in a checkpoint any more.
                    if not backend.collective:
                        self.save()
                    raise
                finally:
                    if self.profile is not None:
                        self.profile.close()
                    backend.close()
            self.write_result(status)
        except RookeryError as error:
            raise logged(self.run_folder, error) from None
        finally:
            self.reporter.callbacks.close()
        self.reducer.close()

    def finish_round(self, before: int, interrupted: bool) -> str | None:
        """Report a round that began at step `before`; evaluate and save if that is due. Return why
        the run is over, None if it is not."""
        backend, progress = self.backend, self.progress
        if self.profile is not None:
            self.profile.round(warm=progress.updates >= self.config.warm_up_updates)
        report = backend.report(interrupted)
        progress.add(report)
        evaluation = self.evaluation
        evaluate = evaluation is not None and evaluation.due(before, progress.env_steps)
        status = progress.end_reason(self.config)
        save = evaluate or status is not None or self.checkpointer.due(before)
        # All ranks take part in a state; only the first gets it.
        state = backend.state() if save else None
        if evaluation is not None and evaluate and state is not None:
            with backend.paused():
                self.checkpointer.add_scores(evaluation.scores(state))
        self.reporter.update(backend, report)
        if save:
            self.checkpointer.save(state)
        return status

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.checkpointer.saved_at != self.progress.env_steps:
            self.checkpointer.save(self.backend.state())

    def rewind(self, lost: LearnerLost) -> None:
        """Continue from the newest checkpoint with new learners."""
        saved = self.checkpointer.newest()
        step = self.progress.env_steps
        self.reporter.announce(
            f"{lost}; going back from step {step:,} to {saved.step:,}", lost.details
        )
        self.backend.restore(saved)
        self.progress.rewind(saved.meta)
        self.reporter.rewind()
        self.checkpointer.rewind(saved)

    def write_result(self, status: str) -> None:
        """Write result.json and the picture of a profile."""
        run = self.run_folder
        if run is None:
            return
        if self.config.profile:
            draw_split(run.path, run.path / "profile" / "split.png")
            self.reporter.announce(f"profile: {run.path / 'profile'}")
        self.reporter.flush()
        result = result_of(status, self.config, self.progress, self.setup, self.reporter)
        run.write_result(result)
        self.reporter.callbacks.on_end(result)


def report_writers(
    run: Run,
    config: RunConfig,
    saved: checkpoint.Checkpoint | None,
    reducer: Reducer,
    console: TextIO,
) -> list[Callback]:
    """Return the callbacks of every run: progress.csv, TensorBoard and the console."""
    step = saved.step if saved else None
    # mpirun gives its ranks a terminal of their own even where its output is a file.
    plain = reducer.world > 1 and os.environ.get(CONSOLE) is None
    return [
        CsvSink(run.progress_path, step),
        TensorBoardSink(run.path, step),
        ConsoleSink(config.env_steps, console, first_step=step or 0, plain=plain),
    ]


def logged(run: Run | None, error: RookeryError) -> RookeryError:
    """Return the error after writing it to the run's log and result."""
    if run is not None:
        run.write_failure(str(error), error.details)
    return error


@contextmanager
def interrupts(run: Run | None) -> Iterator[Callable[[], bool]]:
    """Yield a function that is True once the run is asked to stop: by Ctrl-C, by SIGTERM, or by a
    file `stop` in its folder. A second Ctrl-C ends the run at once."""
    event = threading.Event()
    look_at = 0.0

    def ask(number: int, frame: object) -> None:
        if event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        event.set()

    def interrupted() -> bool:
        nonlocal look_at
        now = time.monotonic()
        if run is not None and now >= look_at:
            look_at = now + STOP_INTERVAL_S
            if run.stop_path.exists():
                run.stop_path.unlink()
                event.set()
        return event.is_set()

    with handling_signals(STOP_SIGNALS, ask):
        yield interrupted


def opening_lines(
    config: RunConfig, setup: Setup, saved: checkpoint.Checkpoint | None
) -> Iterator[str]:
    """Yield the lines that a run starts with."""
    yield (
        f"{config.algorithm} on {config.environment}: {setup.description},"
        f" {config.envs} environments each ({setup.engine}), {setup.threads} threads,"
        f" {setup.device}, {setup.weights:,} weights"
    )
    if setup.memory is not None:
        yield setup.memory
    if saved is not None:
        yield f"resuming at step {saved.step:,} from {saved.path.name}"
        yield from (f"skipped: {line}" for line in saved.skipped)


def result_of(
    status: str, config: RunConfig, progress: Progress, setup: Setup, reporter: Reporter
) -> dict[str, Any]:
    """Return the contents of result.json."""
    seconds = max(progress.elapsed(), 1e-9)
    last = reporter.last_report
    return {
        "status": status,
        **progress.columns(),
        "env_steps_per_second": (progress.env_steps - reporter.first_step) / seconds,
        **reporter.measured(),
        "samples": int(progress.samples),
        "input_bytes": progress.input_bytes,
        **{name: last[name] for name in ("loss", "entropy", "grad_norm") if name in last},
        "last_report": last,
        "seed": config.seed,
        "backend": setup.backend,
        "transport": setup.transport,
        "ranks": setup.ranks,
        "device": setup.device,
        "threads": setup.threads,
        **host_and_cores(),
        "pid": os.getpid(),
        "versions": versions(),
    }
