"""Carrying out a study: each trial is a run of `rookery train`, and its results go to a folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rookery.bench.process import termination_interrupts
from rookery.errors import RookeryError, require
from rookery.machine import host_and_cores, versions
from rookery.runs.files import write_json, write_text, writing
from rookery.runs.run import Run
from rookery.runs.table import read_rows
from rookery.scaling.child import run_child
from rookery.scaling.measure import Measured, number, steady
from rookery.scaling.points import Point
from rookery.scaling.reference import Reference
from rookery.scaling.study import Study
from rookery.scaling.tables import to_csv

START_S = 120.0
"""How long a run may take beyond its minutes; as long as these if they are more."""
SHOW_S = 1.0
"""How often the status of a run is shown on a terminal."""


@dataclass
class Trials:
    """The runs of a study."""

    algorithm: str
    environment: str
    backend: str
    """That of every run: one actor on another backend would be another program."""
    options: Mapping[str, Any]
    """Options of `train` for every run."""
    study: Study
    minutes: float
    folder: Path
    console: TextIO = field(default_factory=lambda: sys.stdout)
    reference: Reference | None = None
    """Figures of another study to set beside these."""
    count: int = 0

    def carry_out(self) -> None:
        """Run every point as often as asked; what is finished is on disk after every run."""
        require(
            not self.folder.exists() or not any(self.folder.iterdir()),
            f"out: {self.folder} holds something already; name a new folder",
        )
        with writing(self.folder):
            self.runs.mkdir(parents=True, exist_ok=True)
        total = len(self.study.tallies) * self.study.rounds
        self.say(
            f"{self.algorithm} on {self.environment}: backend {self.backend} at every point,"
            f" {self.study.cores} cores, {total} runs of {60 * self.minutes:g} s"
        )
        with termination_interrupts():
            self.study.take_turns(self.measure, self.keep)
        self.keep()

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return self.folder / "runs"

    def measure(self, point: Point, number: int) -> Measured:
        """One run of a point, and its steady pace."""
        self.count += 1
        name = f"{point.label}_round{number}"
        output = self.runs / f"{name}.txt"
        status = Status(self, point, number, self.runs / name)
        limit_s = 60 * self.minutes + max(START_S, 60 * self.minutes)
        try:
            status.begin()
            run_child(self.command(point, name), output, limit_s, status.show)
            measured = steady(Run.open(self.runs / name).progress())
        except RookeryError as error:
            status.end(f"failed: {error}")
            raise
        except KeyboardInterrupt:
            status.end("interrupted")
            raise
        status.end(f"{measured.speed:,.0f} steps/s  {self.announced(output)}")
        return measured

    def command(self, point: Point, name: str) -> list[str]:
        """How a point is run, by the interpreter that runs this."""
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
        """What a run told of where and how it computes."""
        start = f"{self.algorithm} on {self.environment}: "
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")

    def keep(self) -> None:
        """Write scaling.json and scaling.csv as they are so far."""
        write_json(self.folder / "scaling.json", self.told())
        write_text(self.folder / "scaling.csv", to_csv(self.study.results()))

    def told(self) -> dict[str, Any]:
        """The results and how they came about."""
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
            "reference": self.reference and self.reference.told(self.study.rows("weak")),
        }

    def say(self, line: str, end: str = "\n") -> None:
        """Print a line for the eye."""
        print(line, file=self.console, end=end, flush=True)


class Status:
    """How a run goes on: a line that changes on a terminal, one at the start elsewhere."""

    def __init__(self, trials: Trials, point: Point, number: int, run: Path):
        total = len(trials.study.tallies) * trials.study.rounds
        self.trials = trials
        self.progress = run / "progress.csv"
        self.head = f"{trials.count}/{total}  round {number}  {point.label}"
        self.terminal = trials.console.isatty()
        self.shown_at = time.monotonic()

    def begin(self) -> None:
        """Say that the run starts."""
        self.line("starting")

    def show(self) -> None:
        """Say how far the run is, on a terminal and not too often."""
        now = time.monotonic()
        if not self.terminal or now - self.shown_at < SHOW_S:
            return
        self.shown_at = now
        if rows := read_rows(self.progress):
            seconds, speed = (number(rows[-1], k) for k in ("seconds", "env_steps_per_second"))
            of = 60 * self.trials.minutes
            self.line(f"{seconds:.0f} of {of:g} s  {speed:,.0f} steps/s")

    def line(self, text: str) -> None:
        """Show a line that the next one replaces."""
        erase = "\r\x1b[K" if self.terminal else ""
        self.trials.say(f"{erase}{self.head}  {text}", end="" if self.terminal else "\n")

    def end(self, text: str) -> None:
        """Show the last line of the run."""
        self.line(text)
        if self.terminal:
            self.trials.say("")
