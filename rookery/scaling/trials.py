"""Run a scaling study: each trial is a `rookery train`, and the results go to a folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rookery.errors import RookeryError, require
from rookery.machine import host_and_cores, versions
from rookery.processes import ProcessTree, termination_as_interrupt
from rookery.runs.files import number, read_rows, write_json, write_text, writing
from rookery.runs.run import Run
from rookery.scaling.speed import Measured, measure_run
from rookery.scaling.study import Point, Study
from rookery.scaling.tables import Reference, scaling_csv

START_S = 120.0
"""Seconds that a run may take beyond its minutes; if the minutes are longer, as long again."""
SHOW_S = 1.0
"""Seconds between updates of the status line on a terminal."""
CHILD_POLL_S = 0.2


@dataclass
class Trials:
    """The training runs of a study and the files of its results."""

    algorithm: str
    environment: str
    backend: str
    """Backend of every run, also those of one actor, so that points are comparable."""
    options: Mapping[str, Any]
    """Options of `rookery train` for every run."""
    study: Study
    minutes: float
    folder: Path
    console: TextIO = field(default_factory=lambda: sys.stdout)
    reference: Reference | None = None
    """Published speeds to compare with."""
    count: int = 0

    def carry_out(self) -> None:
        """Run every point in every round, and save the results after each run."""
        require(
            not self.folder.exists() or not any(self.folder.iterdir()),
            f"out: {self.folder} is not empty; choose a new folder",
        )
        with writing(self.folder):
            self.runs.mkdir(parents=True, exist_ok=True)
        print(
            f"{self.algorithm} on {self.environment}: backend {self.backend} at every point,"
            f" {self.study.cores} cores, {self.total} runs of {60 * self.minutes:g} s",
            file=self.console,
            flush=True,
        )
        with termination_as_interrupt():
            self.study.run_rounds(self.measure, self.save)
        self.save()

    @property
    def total(self) -> int:
        return len(self.study.point_runs) * self.study.rounds

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def measure(self, point: Point, number: int) -> Measured:
        """Run a point once and return its speed."""
        self.count += 1
        name = f"{point.label}_round{number}"
        output = self.runs / f"{name}.txt"
        head = f"{self.count}/{self.total}  round {number}  {point.label}"
        status = StatusLine(self.console, head, self.runs / name / "progress.csv", self.minutes)
        limit_s = 60 * self.minutes + max(START_S, 60 * self.minutes)
        try:
            status.line("starting")
            run_child(self.command(point, name), output, limit_s, status.show)
            measured = measure_run(Run.open(self.runs / name).progress())
        except RookeryError as error:
            status.end(f"failed: {error}")
            raise
        except KeyboardInterrupt:
            status.end("interrupted")
            raise
        # The line in which the run announced its device, backend and threads.
        start = f"{self.algorithm} on {self.environment}: "
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        announced = [line.removeprefix(start) for line in lines if line.startswith(start)]
        status.end(f"{measured.speed:,.0f} steps/s  {announced[0] if announced else ''}")
        return measured

    def command(self, point: Point, name: str) -> list[str]:
        options = {
            **self.options,
            "backend": self.backend,
            "actors": point.actors,
            "envs": point.envs,
            "stop-minutes": self.minutes,
            "runs-dir": self.runs,
            "name": name,
        }
        flags = [
            f"--{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in options.items()
        ]
        run = [sys.executable, "-m", "rookery", "train", self.algorithm, self.environment]
        return [*run, *flags, "--json"]

    def save(self) -> None:
        """Write scaling.json and scaling.csv with the results so far."""
        write_json(self.folder / "scaling.json", self.to_dict())
        write_text(self.folder / "scaling.csv", scaling_csv(self.study.results()))

    def to_dict(self) -> dict[str, Any]:
        """Return the results with settings and machine, as in scaling.json."""
        return {
            "algorithm": self.algorithm,
            "environment": self.environment,
            "status": self.study.status,
            "backend": self.backend,
            "coupling": self.study.coupling,
            "rounds": self.study.rounds,
            "minutes": self.minutes,
            "options": dict(self.options),
            "out": self.folder,
            **host_and_cores(),
            "versions": versions(),
            "studies": self.study.results(),
            "reference": self.reference and self.reference.to_dict(self.study.rows("weak")),
        }


class StatusLine:
    """Progress of a run: an updated line on a terminal, elsewhere a line at start and at end."""

    def __init__(self, console: TextIO, head: str, progress: Path, minutes: float):
        self.console, self.head, self.progress, self.minutes = console, head, progress, minutes
        self.terminal = console.isatty()
        self.shown_at = time.monotonic()

    def show(self) -> None:
        """Update the line on a terminal, at most once per second."""
        now = time.monotonic()
        if not self.terminal or now - self.shown_at < SHOW_S:
            return
        self.shown_at = now
        if rows := read_rows(self.progress):
            seconds, speed = (number(rows[-1], k) for k in ("seconds", "env_steps_per_second"))
            self.line(f"{seconds:.0f} of {60 * self.minutes:g} s  {speed:,.0f} steps/s")

    def line(self, text: str) -> None:
        """Print the line; on a terminal the next one overwrites it."""
        erase, end = ("\r\x1b[K", "") if self.terminal else ("", "\n")
        print(f"{erase}{self.head}  {text}", file=self.console, end=end, flush=True)

    def end(self, text: str) -> None:
        self.line(text)
        if self.terminal:
            print(file=self.console, flush=True)


def run_child(command: list[str], console: Path, limit_s: float, watch: Callable[[], None]) -> None:
    """Run `command` with its output in the file `console`, and call `watch` every 0.2 s.

    Raises RookeryError if it fails or takes longer than `limit_s`. All of its processes have ended
    when this returns or raises.
    """
    deadline = time.monotonic() + limit_s
    with open(console, "w", encoding="utf-8") as output:
        tree = ProcessTree(command, stdout=output, stderr=output, adopt_orphans=True)
        try:
            while (status := tree.wait(CHILD_POLL_S)) is None and time.monotonic() < deadline:
                watch()
        finally:
            tree.end()
    if status is None:
        raise RookeryError(f"did not end within {limit_s:.0f} s")
    if status:
        text = console.read_text(encoding="utf-8", errors="replace")
        raise RookeryError(f"{failure_reason(text, status)} (output: {console})")


def failure_reason(output: str, status: int) -> str:
    """Return the error that a failed run printed; without one, its exit status and last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("rookery: ") for line in lines if line.startswith("rookery: ")]
    return errors[-1] if errors else f"status {status}: {lines[-1] if lines else 'no output'}"
