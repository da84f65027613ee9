"""Callbacks: the console, files and a user's own code are called on the events of a run."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rookery.data.layer_records import LayerRecords
from rookery.errors import BadInput, require
from rookery.runs.files import parse_number, read_cells, to_cell, to_text, write_text, writing
from rookery.runs.run import Run

BAR_INTERVAL_S = 0.1


class Episode(NamedTuple):
    """A finished training episode."""

    env_steps: int
    """Environment steps of the run, up to the report that the episode came with."""
    episode_return: float
    length: int
    truncated: bool
    """True if a time limit ended it rather than the environment."""


class Update(NamedTuple):
    """Counters after a round in which the learner made updates."""

    env_steps: int
    updates: int


class Alarm(NamedTuple):
    """A fault that a trap found."""

    trap: str
    level: str
    """"warn", or "stop": the run ends."""
    text: str
    remedy: str
    column: str
    """Column of the reports that it rests on."""
    figure: float


class Callback:
    """Base class of callbacks: override what you need.

    Methods are called in the process that writes the run's folder: rank 0 on `ranks`, the driver on
    `ray`. An exception in one of them ends the run.
    """

    watch: Sequence[str] = ()
    """Names of layers, as in `rookery graph`, whose outputs and gradients `on_layers` gets."""

    def on_start(self, run: Run) -> None:
        """Called before the first step, with the run's folder."""

    def on_report(self, report: Mapping[str, float]) -> None:
        """Called about once a second, with the columns of a row of progress.csv."""

    def on_episode(self, episode: Episode) -> None:
        """Called for every finished training episode."""

    def on_update(self, update: Update) -> None:
        """Called after every round in which the learner made one or more updates."""

    def on_layers(self, records: LayerRecords) -> None:
        """Called before `on_report` with the histograms and the watched layers of an update since
        the last report, if there are any."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Called when a trap finds a fault."""

    def on_checkpoint(self, path: Path) -> None:
        """Called when a checkpoint is complete, with its folder."""

    def on_rewind(self, env_steps: int) -> None:
        """Called when a run on Ray lost its learner and continues from the checkpoint of
        `env_steps`: later reports will be made again."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called with the contents of result.json when the run is over."""

    def close(self) -> None:
        """Called last, also after a failure."""


def close_all(callbacks: Sequence[Callback]) -> None:
    """Close every callback, also when one of them fails to."""
    with ExitStack() as stack:
        for callback in reversed(callbacks):
            stack.callback(callback.close)


def load_callbacks(given: Sequence[Callback | str]) -> list[Callback]:
    """Return callbacks as objects; "package.module:Name" is the name of a class."""
    found = []
    for each in given:
        callback: Any = load_class(each)() if isinstance(each, str) else each
        require(
            isinstance(callback, Callback),
            f"callbacks: expected an object of a subclass of rookery.Callback, got {callback!r}",
        )
        found.append(callback)
    return found


def load_class(name: str) -> type[Callback]:
    """Return the subclass of Callback that is named as "package.module:Name"."""
    module_name, _, class_name = name.partition(":")
    require(module_name and class_name, f'callbacks: expected package.module:Name, got "{name}"')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f'callbacks: cannot import "{module_name}": {error}') from None
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Callback)):
        raise BadInput(f'callbacks: "{name}" is not a subclass of rookery.Callback')
    return kind


class CsvSink(Callback):
    """A row a report, on disk as soon as it is written; `env_steps` is the first column.

    A file that is there already is continued, without the rows past `resume_step`: the resumed run
    makes them again.
    """

    def __init__(self, path: str | Path, resume_step: int | None = None):
        self.path = Path(path)
        self._open_at(resume_step)

    def _open_at(self, resume_step: int | None) -> None:
        self._header, rows = read_cells(self.path)
        if resume_step is not None:
            steps = [parse_number(row.get("env_steps", "")) for row in rows]
            rows = [
                row
                for row, step in zip(rows, steps, strict=True)
                if step is not None and step <= resume_step
            ]
        self._rewrite(self._header, rows)

    def _rewrite(self, header: list[str], rows: Sequence[Mapping[str, str]]) -> None:
        """Replace the file, and open it for further rows."""
        if header:
            write_text(self.path, to_text(header, rows))
        self._header = header
        with writing(self.path):
            self._file = self.path.open("a", encoding="utf-8", newline="")

    def on_report(self, report: Mapping[str, float]) -> None:
        """Append a row; a column not seen before is added to the rows so far, empty."""
        first = {"env_steps": report["env_steps"]}
        row = {name: to_cell(value) for name, value in (first | dict(report)).items()}
        new = [name for name in row if name not in self._header]
        if new:
            narrow = self._file
            self._rewrite(self._header + new, read_cells(self.path)[1])
            narrow.close()
        with writing(self.path):
            self._file.write(to_text(self._header, [row], with_header=False))
            self._file.flush()

    def on_rewind(self, env_steps: int) -> None:
        """Remove the rows past `env_steps`."""
        self.close()
        self._open_at(env_steps)

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


class ConsoleSink(Callback):
    """Shows how far a run is.

    On a terminal: a bar. Elsewhere, or if `plain`: one line a report, at most one every
    `interval_s` seconds, and always the last.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        interval_s: float = 2.0,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        plain: bool = False,
    ):
        self.total_steps = total_steps
        self._stream: TextIO = sys.stdout if stream is None else stream
        self._clock = clock
        self._interval_s = interval_s
        self._bar: Any = None
        if self._stream.isatty() and not plain:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            # Drawn when a report comes rather than by a thread of its own.
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.description}"),
                console=Console(file=self._stream),
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=total_steps, completed=first_step)
            self._bar.start()
            self._interval_s = BAR_INTERVAL_S
        self._shown_at = -math.inf
        self._silent = False
        self._held: Mapping[str, float] | None = None

    def on_report(self, report: Mapping[str, float]) -> None:
        """Show the report, or hold it back if one was shown a moment ago."""
        self._held = dict(report)
        if self._clock() - self._shown_at >= self._interval_s:
            self._show()

    def close(self) -> None:
        """Show the report held back, and leave the terminal as it was."""
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        report = self._held
        if report is None or self._silent:
            return
        self._held, self._shown_at = None, self._clock()
        if self._bar is not None:
            text, step = bar_text(report, self.total_steps), int(report["env_steps"])
            self._bar.update(self._task, completed=step, description=text, refresh=True)
            return
        try:
            print(line_of(report, self.total_steps), file=self._stream, flush=True)
        except BrokenPipeError:  # the reader (`| head`) has seen enough; training goes on
            self._silent = True


def bar_text(report: Mapping[str, float], total: int) -> str:
    """Return a report in the words beside a progress bar."""
    step, rate = int(report["env_steps"]), report["env_steps_per_second"]
    parts = [
        percent(step, total),
        f"{step:,}/{total:,}",
        f"{rate:,.0f} steps/s",
        _labelled("return", report.get("episode_return_mean"), ".1f"),
        f"ETA {clock_text((total - step) / rate)}" if rate > 0 else "",
    ]
    return " ".join(part for part in parts if part)


def line_of(report: Mapping[str, float], total: int) -> str:
    """Return a report in a line: step, share, mean return, speed and loss, where there are any."""
    step = int(report["env_steps"])
    parts = [
        f"step {step:,}/{total:,}",
        percent(step, total),
        _labelled("return", report.get("episode_return_mean"), ".1f"),
        f"{report['env_steps_per_second']:,.0f} steps/s",
        _labelled("loss", report.get("loss"), ".3g"),
    ]
    return "  ".join(part for part in parts if part)


def percent(step: int, total: int) -> str:
    """The share done, rounded down so that 100% means all of it."""
    return f"{min(100, 100 * step // max(total, 1))}%"


def clock_text(seconds: float) -> str:
    """Seconds as H:MM:SS."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _labelled(label: str, value: float | None, form: str) -> str:
    """`label value`, or nothing where there is no value yet; an infinite loss is shown."""
    if value is None or (math.isnan(value) and label == "return"):
        return ""
    return f"{label} {value:{form}}"
