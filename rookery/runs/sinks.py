"""Where reports go: CSV, TensorBoard, the console, or all of them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

from rookery.runs.console import ConsoleSink
from rookery.runs.files import write_text, writing
from rookery.runs.table import cell, parse, read_cells, to_text

__all__ = ["ConsoleSink", "CsvSink", "Sink", "Sinks", "TensorBoardSink", "tag_of"]


class Sink(Protocol):
    """Takes one report after another."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the report made at `step` agent steps."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Iterable[Sink]):
        self.sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the report to every sink."""
        for sink in self.sinks:
            sink.write(step, metrics)

    def close(self) -> None:
        """Close every sink, also when one of them fails to."""
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(sink.close)


class CsvSink:
    """A row a report, on disk as soon as it is written; `env_steps` is the first column.

    A file that is there already is continued, without the rows past `resume_step`: the resumed run
    makes them again.
    """

    def __init__(self, path: str | Path, resume_step: int | None = None):
        self.path = Path(path)
        self._header, rows = read_cells(self.path)
        if self._header:
            kept = [row for row in rows if _within(row, resume_step)]
            write_text(self.path, to_text(self._header, kept))
        self._file = self._open()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; a column not seen before is added to the rows so far, empty."""
        row = {name: cell(value) for name, value in {"env_steps": step, **metrics}.items()}
        new = [name for name in row if name not in self._header]
        if new:
            self._widen(new)
        with writing(self.path):
            self._file.write(to_text(self._header, [row], with_header=False))
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with writing(self.path):
            self._file.close()

    def _open(self) -> IO[str]:
        with writing(self.path):
            return open(self.path, "a", encoding="utf-8", newline="")

    def _widen(self, new: list[str]) -> None:
        rows = read_cells(self.path)[1]
        wider = self._header + new
        write_text(self.path, to_text(wider, rows))
        self._header = wider
        self._file.close()
        self._file = self._open()


def _within(row: Mapping[str, str], step: int | None) -> bool:
    at = parse(row.get("env_steps", ""))
    return step is None or (at is not None and at <= step)


_TAGS = {
    "episodes": "episode/count",
    "env_steps": "progress/env_steps",
    "updates": "progress/updates",
    "seconds": "time/seconds",
    "env_steps_per_second": "time/env_steps_per_second",
    "updates_per_second": "time/updates_per_second",
    "epsilon": "actor/epsilon",
    "actors_healthy": "actor/healthy",
    "policy_lag_mean": "actor/policy_lag_mean",
}
_GROUPS = {"episode_": "episode", "eval_": "evaluation", "replay_": "replay", "actor_": "actor"}


def tag_of(name: str) -> str:
    """The TensorBoard tag of a column: `group/name`, what is in no other group is the learner's."""
    if "/" in name or name in _TAGS:
        return _TAGS.get(name, name)
    for prefix, group in _GROUPS.items():
        if name.startswith(prefix):
            return f"{group}/{name.removeprefix(prefix)}"
    if name.endswith("_s"):
        return f"time/{name}"
    return f"machine/{name}" if name.endswith("_percent") else f"learner/{name}"


class TensorBoardSink:
    """An event file for TensorBoard, one event a report.

    Written with TensorBoard's own record writer: no thread, no queue that a crash would lose, and
    no import of TensorFlow where that is installed.
    """

    _count = itertools.count()

    def __init__(self, folder: str | Path, resume_step: int | None = None):
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
            RecordWriter,
        )

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.uname().nodename}"
        self.path = Path(folder) / f"{name}.{os.getpid()}.{next(self._count)}"
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._records: Any = RecordWriter(self.path.open("wb"))
        self._add(file_version="brain.Event:2")
        if resume_step is not None:
            # TensorBoard then hides what earlier event files say of the steps made again.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=resume_step + 1, session_log=start)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the report as scalars."""
        values = [
            self._summary.Value(tag=tag_of(name), simple_value=float(value))
            for name, value in metrics.items()
            if value is not None
        ]
        self._add(step=int(step), summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file."""
        with writing(self.path):
            self._records.close()

    def _add(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        with writing(self.path):
            self._records.write(event.SerializeToString())
            self._records.flush()
