"""events.jsonl: alarms, evaluations and checkpoints of a run, one JSON object a line."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.runs.callbacks import Alarm, Callback
from rookery.runs.files import to_json, writing
from rookery.runs.run import Run


class EventSink(Callback):
    """Appends a line for each event; a resumed run continues the file."""

    def __init__(self, run: Run):
        self.path = run.events_path
        self.env_steps = 0

    def add(self, event: str, **content: Any) -> None:
        """Append an event."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = to_json({"time": now, "event": event, "env_steps": self.env_steps} | content, None)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def on_start(self, run: Run) -> None:
        self.add("start")

    def on_report(self, report: Mapping[str, float]) -> None:
        """Note the step, and the scores of an evaluation."""
        self.env_steps = int(report["env_steps"])
        scores = {name: value for name, value in report.items() if name.startswith("eval_")}
        if scores:
            self.add("evaluation", **scores)

    def on_alarm(self, alarm: Alarm) -> None:
        self.add("alarm", **alarm._asdict())

    def on_checkpoint(self, path: Path) -> None:
        self.add("checkpoint", name=path.name)

    def on_rewind(self, env_steps: int) -> None:
        self.env_steps = env_steps
        self.add("rewind")

    def on_end(self, result: Mapping[str, Any]) -> None:
        self.add("end", status=result["status"])
