"""Callbacks that write reports to progress.csv and to TensorBoard."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rookery.runs.callbacks import Callback
from rookery.runs.files import write_text, writing
from rookery.runs.table import parse_number, read_cells, to_cell, to_text


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
        if self._header:
            kept = [row for row in rows if _within(row, resume_step)]
            write_text(self.path, to_text(self._header, kept))
        self._file = self._open()

    def on_report(self, report: Mapping[str, float]) -> None:
        """Append a row; a column not seen before is added to the rows so far, empty."""
        first = {"env_steps": report["env_steps"]}
        row = {name: to_cell(value) for name, value in (first | dict(report)).items()}
        new = [name for name in row if name not in self._header]
        if new:
            self._widen(new)
        with writing(self.path):
            self._file.write(to_text(self._header, [row], with_header=False))
            self._file.flush()

    def on_rewind(self, env_steps: int) -> None:
        """Remove the rows past `env_steps`."""
        self.close()
        self._open_at(env_steps)

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
    at = parse_number(row.get("env_steps", ""))
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


class TensorBoardSink(Callback):
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
        self._session: Any = event_pb2.SessionLog
        self._writer: Any = RecordWriter
        self.folder = Path(folder)
        self._open_at(resume_step)

    def _open_at(self, resume_step: int | None) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.uname().nodename}"
        self.path = self.folder / f"{name}.{os.getpid()}.{next(self._count)}"
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._records: Any = self._writer(self.path.open("wb"))
        self._add(file_version="brain.Event:2")
        if resume_step is not None:
            # TensorBoard then hides what earlier event files say of the steps made again.
            start = self._session(status=self._session.START)
            self._add(step=resume_step + 1, session_log=start)

    def on_report(self, report: Mapping[str, float]) -> None:
        """Append the report as scalars."""
        values = [
            self._summary.Value(tag=tag_of(name), simple_value=float(value))
            for name, value in report.items()
            if value is not None
        ]
        self._add(step=int(report["env_steps"]), summary=self._summary(value=values))

    def on_rewind(self, env_steps: int) -> None:
        """Continue in a new file that hides later steps of this one."""
        self.close()
        self._open_at(env_steps)

    def close(self) -> None:
        """Close the file."""
        with writing(self.path):
            self._records.close()

    def _add(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        with writing(self.path):
            self._records.write(event.SerializeToString())
            self._records.flush()
