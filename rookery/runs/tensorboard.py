"""TensorBoard: reports, histograms and alarms as events, and the tags of columns."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.data.layer_records import LayerRecords
from rookery.runs.callbacks import Alarm, Callback
from rookery.runs.files import writing

_GROUPS = {
    "progress": ("env_steps", "updates"),
    "policy": (
        *("entropy", "entropy_share", "kl", "clip_fraction", "policy_loss", "policy_churn"),
        *("action_share", "action_mean", "action_std"),
    ),
    "value": (
        *("value_loss", "value_mean", "value_std", "explained_variance", "td_error"),
        *("td_error_max", "q_mean", "q_std", "q_min", "q_max", "delta_q"),
        *("advantage_mean", "advantage_std", "target_min", "target_max", "target_mean"),
        *("target_std", "target_distance", "target_change"),
    ),
    "gradient": ("grad_norm", "gradient_norm", "weight_norm", "update_ratio"),
    "network": ("dormant", "saturated", "feature_rank", "feature_count"),
    "data": (
        *("obs_min", "obs_max", "obs_mean", "obs_std", "obs_constant"),
        *("reward_min", "reward_max", "reward_mean", "reward_std"),
    ),
    "throughput": ("env_steps_per_second", "updates_per_second", "throughput", "latency_ms"),
    "actor": ("epsilon", "actors_healthy", "policy_lag_mean", "policy_lag_max"),
    "time": ("seconds", "env_s", "inference_s", "transfer_s", "learn_s", "reduce_s", "wait_s"),
}
"""Columns by their group in TensorBoard; a column's name for one layer or action has the same."""
_GROUP_OF = {column: group for group, columns in _GROUPS.items() for column in columns}
_TAGS = {
    "episodes": "episode/count",
    "random_return": "episode/random_return",
    "actors_healthy": "actor/healthy",
}
_PREFIXES = {"episode_": "episode", "eval_": "evaluation", "replay_": "replay", "actor_": "actor"}


def tag_of(name: str) -> str:
    """Return the TensorBoard tag of a column: `group/name`, by default in the group `learner`."""
    if name in _TAGS:
        return _TAGS[name]
    if (group := _GROUP_OF.get(name.partition("/")[0])) is not None:
        return f"{group}/{name}"
    for prefix, group in _PREFIXES.items():
        if name.startswith(prefix):
            return f"{group}/{name.removeprefix(prefix)}"
    if "/" in name:
        return name
    return f"machine/{name}" if name.endswith(("_percent", "_mb")) else f"learner/{name}"


class TensorBoardSink(Callback):
    """An event file for TensorBoard, one event a report.

    Written with TensorBoard's own record writer: no thread, no queue that a crash would lose, and
    no import of TensorFlow where that is installed.
    """

    _count = itertools.count()

    def __init__(self, folder: str | Path, resume_step: int | None = None):
        from tensorboard.compat.proto import (  # type: ignore[import-untyped]
            event_pb2,
            histogram_pb2,
            summary_pb2,
            tensor_pb2,
        )
        from tensorboard.summary.writer import record_writer  # type: ignore[import-untyped]

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._metadata: Any = summary_pb2.SummaryMetadata
        self._tensor: Any = tensor_pb2.TensorProto
        self._histogram: Any = histogram_pb2.HistogramProto
        self._session: Any = event_pb2.SessionLog
        self._writer: Any = record_writer.RecordWriter
        self.folder = Path(folder)
        self._step = resume_step or 0
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
        self._step = int(report["env_steps"])
        self._add(step=self._step, summary=self._summary(value=values))

    def on_layers(self, records: LayerRecords) -> None:
        """Append the histograms, at the step of the last report."""
        values = [
            self._summary.Value(
                tag=tag,
                histo=self._histogram(
                    min=histogram.edges[0],
                    max=histogram.edges[-1],
                    num=histogram.counts.sum(),
                    sum=histogram.sum,
                    sum_squares=histogram.sum_of_squares,
                    bucket_limit=histogram.edges[1:].tolist(),
                    bucket=histogram.counts.tolist(),
                ),
            )
            for tag, histogram in records.histograms.items()
        ]
        if values:
            self._add(step=self._step, summary=self._summary(value=values))

    def on_alarm(self, alarm: Alarm) -> None:
        """Append the alarm as text."""
        text = f"{alarm.text}. Try: {alarm.remedy}"
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode()])
        about = self._metadata(plugin_data={"plugin_name": "text"})
        value = self._summary.Value(tag=f"alarms/{alarm.trap}", metadata=about, tensor=tensor)
        self._add(step=self._step, summary=self._summary(value=[value]))

    def on_rewind(self, env_steps: int) -> None:
        """Continue in a new file that hides later steps of this one."""
        self.close()
        self._open_at(env_steps)

    def close(self) -> None:
        with writing(self.path):
            self._records.close()

    def _add(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        with writing(self.path):
            self._records.write(event.SerializeToString())
            self._records.flush()
