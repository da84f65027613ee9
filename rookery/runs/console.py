"""Reports for the eye: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rookery.runs.callbacks import Callback

BAR_INTERVAL_S = 0.1


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
        terminal = self._stream.isatty() and not plain
        self._bar = _Bar(total_steps, first_step, self._stream) if terminal else None
        self._interval_s = BAR_INTERVAL_S if terminal else interval_s
        self._shown_at = -math.inf
        self._silent = False
        self._held: tuple[int, dict[str, float]] | None = None

    def on_report(self, report: Mapping[str, float]) -> None:
        """Show the report, or hold it back if one was shown a moment ago."""
        self._held = (int(report["env_steps"]), dict(report))
        if self._clock() - self._shown_at >= self._interval_s:
            self._show()

    def close(self) -> None:
        """Show the report held back, and leave the terminal as it was."""
        self._show()
        if self._bar:
            self._bar.close()

    def _show(self) -> None:
        if self._held is None or self._silent:
            return
        step, metrics = self._held
        self._held, self._shown_at = None, self._clock()
        if self._bar:
            self._bar.show(step, metrics)
        else:
            self._print(line_of(step, self.total_steps, metrics))

    def _print(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except BrokenPipeError:  # the reader (`| head`) has seen enough; training goes on
            self._silent = True


class _Bar:
    """Rich's progress bar, drawn when a report comes rather than by a thread of its own."""

    def __init__(self, total: int, first_step: int, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        names = ("percent", "steps", "rate", "return_mean", "eta")
        columns = [TextColumn(f"{{task.fields[{name}]}}") for name in names]
        self._progress: Any = Progress(
            BarColumn(), *columns, console=Console(file=stream), auto_refresh=False
        )
        self._total = total
        empty: Any = dict.fromkeys(names, "")
        self._task = self._progress.add_task("", total=total, completed=first_step, **empty)
        self._progress.start()

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Redraw the bar."""
        rate = metrics["env_steps_per_second"]
        self._progress.update(
            self._task,
            completed=step,
            refresh=True,
            percent=percent(step, self._total),
            steps=f"{step:,}/{self._total:,}",
            rate=f"{rate:,.0f} steps/s",
            return_mean=_labelled("return", metrics.get("episode_return_mean"), ".1f"),
            eta=f"ETA {clock_text((self._total - step) / rate)}" if rate > 0 else "",
        )

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()


def line_of(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """A report in a line: step, share, mean return, speed and loss, as far as it has them."""
    parts = [
        f"step {step:,}/{total:,}",
        percent(step, total),
        _labelled("return", metrics.get("episode_return_mean"), ".1f"),
        f"{metrics['env_steps_per_second']:,.0f} steps/s",
        _labelled("loss", metrics.get("loss"), ".3g"),
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
