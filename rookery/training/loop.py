"""The training loop of a process: advance, report, evaluate, save, until the run is over."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch

from rookery.backends.base import LearnerLost
from rookery.backends.factory import make_backend
from rookery.backends.ranks.launch import CONSOLE
from rookery.config import RunConfig
from rookery.diagnostics.inspection_picture import draw_record
from rookery.diagnostics.profiling import Profile
from rookery.diagnostics.random_baseline import baseline_of_run
from rookery.diagnostics.traps import Traps, trap_levels
from rookery.errors import Diverged, RookeryError, RunFailed
from rookery.learning.diagnosis import UpdateEvidence
from rookery.learning.reduce import Reducer
from rookery.machine import host_and_cores, keep_freed_memory, versions
from rookery.processes import STOP_SIGNALS, handling_signals
from rookery.reports.split import draw_split
from rookery.runs import checkpoint
from rookery.runs.callbacks import (
    Alarm,
    Callback,
    ConsoleSink,
    CsvSink,
    close_all,
)
from rookery.runs.events import EventSink
from rookery.runs.evidence import save_evidence
from rookery.runs.run import Run
from rookery.runs.tensorboard import TensorBoardSink
from rookery.training.checkpointer import Checkpointer, passes_multiple
from rookery.training.reporter import Progress, Reporter
from rookery.training.trained import evaluate_while_training

STOP_INTERVAL_S = 0.2
"""Time between looks for the file `stop`."""


class TrainingLoop:
    """One process of a run, which advances its backend, reports, evaluates and saves checkpoints.

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
        self.run_folder, self.config, self.reducer, self.device = run, config, reducer, device
        saved = checkpoint.load_newest(path / "checkpoints") if resuming else None
        self.progress = Progress()
        if saved is not None:
            self.progress.load(saved.meta)
        console = console or sys.stdout
        step = None if saved is None else saved.step
        writers = [] if run is None else make_writers(run, config, reducer.world, console, step)
        self.callbacks = [*writers, *callbacks]
        self.reporter = Reporter(run, config, self.progress, self.callbacks, console)
        self.checkpointer = Checkpointer(run, config, self.progress, self.reporter, saved)
        try:
            watched = {name for callback in callbacks for name in callback.watch}
            measured = replace(config, watch_layers=(*config.watch_layers, *sorted(watched)))
            self.backend = make_backend(measured, reducer, device, saved, self.reporter.announce)
        except RookeryError as error:
            close_all(self.callbacks)
            if run is not None and isinstance(error, RunFailed):
                run.write_failure(str(error), error.details)
            elif run is not None and not resuming:
                run.remove()
            raise
        self.setup = self.backend.setup()
        self.profile = Profile(run.path / "profile") if run and config.profile else None
        self.announce_start(saved)
        if run is not None and trap_levels(config):
            baseline = self.reporter.baseline
            known = None if baseline is None else baseline._asdict()
            self.callbacks.append(Traps(config, known, self.raise_alarm))

    def announce_start(self, saved: checkpoint.Checkpoint | None) -> None:
        """Announce where and how the run computes, what a random policy gets, and what is
        resumed."""
        config, setup, run = self.config, self.setup, self.run_folder
        self.reporter.announce(
            f"{config.algorithm} on {config.environment}: {setup.description},"
            f" {config.envs} environments each ({setup.engine}), {setup.threads} threads,"
            f" {setup.device}, {setup.weights:,} weights"
        )
        if setup.memory is not None:
            self.reporter.announce(setup.memory)
        if run is not None and config.random_baseline:
            self.compare_with_random(run)
        if saved is not None:
            self.reporter.announce(f"resuming at step {saved.step:,} from {saved.path.name}")
            for line in saved.skipped:
                self.reporter.announce(f"skipped: {line}")

    def compare_with_random(self, run: Run) -> None:
        """Announce the return of a random policy, if it is known; every report has it."""
        # On Ray environments run on other machines; here they may not work, or end the process.
        may_play = self.setup.backend != "ray"
        self.reporter.baseline = baseline = baseline_of_run(
            self.config.environment, self.config.env, may_play
        )
        if baseline is not None:
            self.reporter.announce(f"random policy: {baseline} ({baseline.episodes} episodes)")
        else:
            run.log("random policy: not measured; 'rookery evaluate random' measures it")

    def raise_alarm(self, alarm: Alarm) -> None:
        """Report a fault that a trap found; if the trap is to stop the run, save what repeats the
        fault and raise RunFailed."""
        self.reporter.announce(f"warning: {alarm.trap}: {alarm.text}. Try: {alarm.remedy}")
        for callback in self.callbacks:
            callback.on_alarm(alarm)
        if alarm.level == "stop":
            self.save_evidence(alarm.trap, self.backend.evidence(), alarm._asdict())
            raise RunFailed(f"stopped by the trap {alarm.trap}: {alarm.text}")

    def save_evidence(
        self, trap: str, evidence: UpdateEvidence | None, about: Mapping[str, Any]
    ) -> None:
        """Write what repeats a fault to the run's folder."""
        if self.run_folder is None:
            return
        if evidence is None:
            self.reporter.announce(f"trap {trap}: no update was kept to repeat it")
            return
        path = self.run_folder.path / "traps" / trap
        save_evidence(path, evidence.batch, evidence.weights, about)
        self.reporter.announce(
            f"'rookery doctor {self.run_folder.path} --replay {trap}' repeats the update"
        )

    def run(self) -> None:
        """Play and learn until the run is over, and write its result."""
        backend, progress = self.backend, self.progress
        try:
            if self.run_folder is not None:
                for callback in self.callbacks:
                    callback.on_start(self.run_folder)
            with interrupts(self.run_folder) as interrupted:
                try:
                    self.reporter.start_clock()
                    backend.start()
                    if backend.recovers and progress.env_steps == 0:
                        self.checkpointer.save(backend.state())
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
                    if not backend.collective and self.checkpointer.saved_at != progress.env_steps:
                        self.checkpointer.save(backend.state())
                    raise
                finally:
                    if self.profile is not None:
                        self.profile.close()
                    backend.close()
            self.write_result(status)
        except RookeryError as error:
            if isinstance(error, Diverged):
                self.save_evidence("diverged", error.evidence, {"text": str(error)})
            if self.run_folder is not None:
                self.run_folder.write_failure(str(error), error.details)
            raise
        finally:
            close_all(self.callbacks)
        self.reducer.close()

    def finish_round(self, before: int, interrupted: bool) -> str | None:
        """Report a round that began at step `before`; evaluate and save if that is due. Return why
        the run is over, None if it is not."""
        backend, progress, config = self.backend, self.progress, self.config
        if self.profile is not None:
            self.profile.round(warm=progress.updates >= config.warm_up_updates)
        report = backend.report(interrupted, self.reporter.usage())
        progress.add(report)
        status = progress.end_reason(config)
        evaluate = passes_multiple(config.eval_steps, before, progress.env_steps)
        save = evaluate or status is not None or self.checkpointer.is_due(before)
        # All ranks take part in a state; only the first gets it.
        state = backend.state() if save else None
        if evaluate and state is not None:
            with backend.paused():
                self.checkpointer.add_scores(
                    evaluate_while_training(config, state.tensors, self.device)
                )
        if passes_multiple(config.inspect_every or None, before, progress.env_steps):
            self.draw_observations()
        self.reporter.update(backend, report)
        if save:
            self.checkpointer.save(state)
        return status

    def draw_observations(self) -> None:
        """Write a picture of what the network gets into the run's folder, on rank 0."""
        run, step = self.run_folder, self.progress.env_steps
        if run is None:
            return
        observed = self.backend.observations()
        if observed is None:
            self.reporter.announce(f"inspect: no picture at step {step:,}: actor 0 is not ready")
            return
        picture = run.path / "plots" / f"inspect_{step:09d}.png"
        draw_record(observed, f"{self.config.environment} at step {step:,}", picture)
        run.log(f"inspect: {picture.relative_to(run.path)}")

    def rewind(self, lost: LearnerLost) -> None:
        """Continue from the newest checkpoint with new learners."""
        assert self.run_folder is not None
        saved = checkpoint.load_newest(self.run_folder.checkpoints)
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
        run, setup, reporter = self.run_folder, self.setup, self.reporter
        if run is None:
            return
        if self.config.profile:
            draw_split(run.path, run.path / "profile" / "split.png")
            reporter.announce(f"profile: {run.path / 'profile'}")
        reporter.flush()
        seconds = max(reporter.elapsed(), 1e-9)
        last, baseline = reporter.last_report, reporter.baseline
        result: dict[str, Any] = {
            "status": status,
            **self.progress.columns(),
            "env_steps_per_second": (self.progress.env_steps - reporter.first_step) / seconds,
            **reporter.rates(reporter.measured_from),
            "samples": int(self.progress.samples),
            "input_bytes": self.progress.input_bytes,
            **{name: last[name] for name in ("loss", "entropy", "grad_norm") if name in last},
            **({} if baseline is None else {"random_return": baseline._asdict()}),
            "last_report": last,
            "seed": self.config.seed,
            "backend": setup.backend,
            "transport": setup.transport,
            "ranks": setup.ranks,
            "device": setup.device,
            "threads": setup.threads,
            **host_and_cores(),
            "pid": os.getpid(),
            "versions": versions(),
        }
        run.write_result(result)
        for callback in self.callbacks:
            callback.on_end(result)


def make_writers(
    run: Run, config: RunConfig, world: int, console: TextIO, step: int | None
) -> list[Callback]:
    """Return the callbacks that write to the run's folder and to the console, for a run that
    starts, or is resumed at `step`."""
    # mpirun gives its ranks a terminal of their own even where its output is a file.
    plain = world > 1 and os.environ.get(CONSOLE) is None
    return [
        CsvSink(run.progress_path, step),
        TensorBoardSink(run.path, step),
        ConsoleSink(config.env_steps, console, first_step=step or 0, plain=plain),
        EventSink(run),
    ]


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
