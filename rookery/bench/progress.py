"""Progress of a benchmark run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class ProgressBar:
    """Shows which variant runs and how each one ended."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self._total, self._done = total, 0
        self._stream: TextIO = sys.stderr if stream is None else stream
        self._bar: Any = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            # No refresh thread: forking in a process with threads can deadlock.
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def begin(self, label: str) -> None:
        """Show that a variant starts."""
        if self._bar:
            self._bar.update(self._task, description=label, refresh=True)

    def end(self, label: str, outcome: str, failed: bool) -> None:
        """Show that a variant has ended; above a bar only failures are printed."""
        self._done += 1
        if failed or not self._bar:
            self.print_line(f"{self._done}/{self._total} {label}: {outcome}")
        if self._bar:
            self._bar.update(self._task, completed=self._done, refresh=True)

    def print_line(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()
