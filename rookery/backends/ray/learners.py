"""The learners of a Ray run, as the driver sees them: lost and restarted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, RayError

from rookery.backends.base import CheckpointState, LearnerLost, Log
from rookery.backends.ray.cluster import Needs
from rookery.backends.ray.failures import SlowWaitLog, raise_cause, reason_of, wait_for
from rookery.backends.ray.messages import LearnerReport, WorkerReady, from_arrays, to_arrays
from rookery.backends.ray.slots import StatusRow, status_row
from rookery.backends.ray.workers import LearnerWorker, WorkerSpec, kill_worker, start_worker
from rookery.data.layer_records import LayerRecords
from rookery.errors import RookeryError
from rookery.learning.actor import Times
from rookery.runs.checkpoint import Checkpoint

WAIT_S = 1.0


class LearnerGroup:
    """Ray actors that learn together, and what they reported."""

    def __init__(self, spec: WorkerSpec, needs: Needs, log: Log):
        self.spec, self.needs, self.log = spec, needs, log
        self.config = spec.config
        self.count = needs.learners
        self.handles: list[Any] = []
        self.ready: list[WorkerReady] = []
        self.restarts = 0
        self.updates = 0
        self.samples = 0.0
        self.input_bytes: int | None = None
        self.names: list[str] = []
        """Names of the metrics that `sums` adds up."""
        self.sums: Any = 0.0
        self.counted = 0
        """Updates since the last call of `take_metrics`."""
        self.measured: dict[str, float] = {}
        """Columns of the diagnosis since the last call of `take_metrics`."""
        self.records: LayerRecords | None = None
        """The newest histograms and watched layers since the last call of `take_records`."""
        self.notices: list[str] = []
        self.earlier_times = Times()
        """Times of learners that were lost."""
        self.times_now = Times()
        self.memory_mb = 0.0
        """In RAM, of all learners."""

    def start(self, writers: Sequence[int], saved: Checkpoint | None) -> list[Any]:
        """Start learners that continue from `saved`, each with a memory for so many actors; return
        references to their answers when they are ready."""
        options = self.needs.options("learner")
        self.handles = [start_worker(LearnerWorker, options, self.spec) for _ in range(self.count)]
        address = ""
        if self.count > 1:
            first = self.handles[0].meeting_point.remote()
            (address,) = wait_for([first], "a learner", self.config.ray.start_seconds)
        tensors = counts = None
        if saved is not None:
            tensors, counts = ray.put(to_arrays(saved.tensors)), saved.meta
            self.updates, self.samples = int(counts["updates"]), float(counts.get("samples", 0))
        return [
            learner.begin.remote(rank, self.count, address, writers[rank], tensors, counts)
            for rank, learner in enumerate(self.handles)
        ]

    def wait_until_ready(self, references: Sequence[Any]) -> None:
        """Wait until all learners have started."""
        self.ready = wait_for(references, self.name, self.config.ray.start_seconds)

    def restart(self, writers: Sequence[int], saved: Checkpoint) -> None:
        """Replace lost learners with new ones that continue from `saved`."""
        limit = self.config.ray.learner_restarts
        if self.restarts >= limit:
            # Not RunFailed, after which a checkpoint is made of the learners' state: it is lost.
            raise RookeryError(
                f"the learners were lost {self.restarts + 1} times, more than"
                f" ray.learner_restarts={limit} allows"
            )
        self.restarts += 1
        self.end()
        self.sums, self.counted = 0.0, 0
        self.earlier_times, self.times_now = self.times, Times()
        self.wait_until_ready(self.start(writers, saved))
        self.log(f"learners restarted ({self.restarts} of at most {limit} times)", "")

    def answers(self, references: Sequence[Any], doing: str) -> list[Any]:
        """Return the learners' answers; LearnerLost if one died, ObjectLostError if the only one
        lives but the segments it was to learn from are lost."""
        waiting, slow_wait = list(references), SlowWaitLog(self.log)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=WAIT_S)
                for reference in ready:
                    ray.get(reference)
                slow_wait.check(f"{self.name} to {doing}")
            return [ray.get(reference) for reference in references]
        except RayError as error:
            raise_cause(error)
            if isinstance(error, ObjectLostError) and self.count == 1:
                raise
            raise LearnerLost(f"a learner was lost: {reason_of(error)}", str(error)) from None

    def add(self, reports: Sequence[LearnerReport]) -> None:
        """Add a report of every learner; counters, alike in all, are those of the first."""
        report = reports[0]
        self.memory_mb = sum(each.memory_mb for each in reports)
        self.updates, self.samples = report.updates, report.samples
        self.sums = self.sums + report.sums
        self.counted += report.counted
        self.names = report.names
        self.input_bytes = report.input_bytes
        self.notices += report.notices
        self.times_now = report.times
        self.measured |= report.measured
        self.records = report.records or self.records

    def take_metrics(self) -> dict[str, float]:
        """Return means over the updates since the last call."""
        if not self.counted:
            return {}
        means = (np.asarray(self.sums) / self.counted).tolist()
        self.sums, self.counted = 0.0, 0
        measured, self.measured = self.measured, {}
        return dict(zip(["grad_norm", *self.names], means, strict=False)) | measured

    def take_records(self) -> LayerRecords | None:
        """Return the newest histograms and watched layers since the last call."""
        records, self.records = self.records, None
        return records

    def state(self) -> CheckpointState:
        """Return the first learner's networks, optimizer and counts; RookeryError if the weights of
        the learners differ."""
        references = [self.handles[0].state.remote()]
        references += [learner.digest.remote() for learner in self.handles]
        (tensors, counts), *digests = self.answers(references, "send their weights")
        if len(set(digests)) > 1:
            raise RookeryError(f"the weights of the learners differ: {digests}")
        self.updates, self.samples = counts["updates"], counts["samples"]
        return CheckpointState(from_arrays(tensors, torch.device("cpu")), counts)

    @property
    def times(self) -> Times:
        """Times of the first learner and of those it replaced."""
        return self.earlier_times.plus(self.times_now)

    @property
    def name(self) -> str:
        return "the learner" if self.count == 1 else f"{self.count} learners"

    def rows(self) -> list[StatusRow]:
        """Return the learners' rows of the status table."""
        text = f"{self.updates:,} updates"
        return [
            status_row(f"learner {rank}", ready.place, self.restarts, text)
            for rank, ready in enumerate(self.ready)
        ]

    def end(self) -> None:
        for handle in self.handles:
            kill_worker(handle)
