"""Run a scaling study: each trial is a `rookery train`, and the results go to a folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rookery.errors import RookeryError, require
from rookery.machine import host_and_cores, versions
from rookery.processes import termination_as_interrupt
from rookery.runs.files import read_rows, write_json, write_text, writing
from rookery.runs.run import Run
from rookery.scaling.child import run_child
from rookery.scaling.measure import Measured, measure_run, number
from rookery.scaling.points import Point
from rookery.scaling.reference import Reference
from rookery.scaling.study import Study
from rookery.scaling.tables import scaling_csv

START_S = 120.0
"""Seconds that a run may take beyond its minutes; if the minutes are longer, as long again."""
SHOW_S = 1.0
"""Seconds between updates of the status line on a terminal."""


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
        total = len(self.study.point_runs) * self.study.rounds
        self.print_line(
            f"{self.algorithm} on {self.environment}: backend {self.backend} at every point,"
            f" {self.study.cores} cores, {total} runs of {60 * self.minutes:g} s"
        )
        with termination_as_interrupt():
            self.study.run_rounds(self.measure, self.save)
        self.save()

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return self.folder / "runs"

    def measure(self, point: Point, number: int) -> Measured:
        """Run a point once and return its speed."""
        self.count += 1
        name = f"{point.label}_round{number}"
        output = self.runs / f"{name}.txt"
        status = StatusLine(self, point, number, self.runs / name)
        limit_s = 60 * self.minutes + max(START_S, 60 * self.minutes)
        try:
            status.begin()
            run_child(self.command(point, name), output, limit_s, status.show)
            measured = measure_run(Run.open(self.runs / name).progress())
        except RookeryError as error:
            status.end(f"failed: {error}")
            raise
        except KeyboardInterrupt:
            status.end("interrupted")
            raise
        status.end(f"{measured.speed:,.0f} steps/s  {self.announced(output)}")
        return measured

    def command(self, point: Point, name: str) -> list[str]:
        """Return the command that runs a point."""
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

    def announced(self, output: Path) -> str:
        """Return the line in which a run announced its device, backend and threads."""
        start = f"{self.algorithm} on {self.environment}: "
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")

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

    def print_line(self, line: str, end: str = "\n") -> None:
        """Print a line to the console."""
        print(line, file=self.console, end=end, flush=True)


class StatusLine:
    """Progress of a run: an updated line on a terminal, elsewhere a line at start and at end."""

    def __init__(self, trials: Trials, point: Point, number: int, run: Path):
        total = len(trials.study.point_runs) * trials.study.rounds
        self.trials = trials
        self.progress = run / "progress.csv"
        self.head = f"{trials.count}/{total}  round {number}  {point.label}"
        self.terminal = trials.console.isatty()
        self.shown_at = time.monotonic()

    def begin(self) -> None:
        """Show that the run starts."""
        self.line("starting")

    def show(self) -> None:
        """Update the line on a terminal, at most once per second."""
        now = time.monotonic()
        if not self.terminal or now - self.shown_at < SHOW_S:
            return
        self.shown_at = now
        if rows := read_rows(self.progress):
            seconds, speed = (number(rows[-1], k) for k in ("seconds", "env_steps_per_second"))
            of = 60 * self.trials.minutes
            self.line(f"{seconds:.0f} of {of:g} s  {speed:,.0f} steps/s")

    def line(self, text: str) -> None:
        """Print the line; on a terminal the next one overwrites it."""
        erase = "\r\x1b[K" if self.terminal else ""
        self.trials.print_line(f"{erase}{self.head}  {text}", end="" if self.terminal else "\n")

    def end(self, text: str) -> None:
        """Print the final line of the run."""
        self.line(text)
        if self.terminal:
            self.trials.print_line("")
