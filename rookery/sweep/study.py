"""A sweep under way: points to Tune, results into the folder."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from rookery.config import from_values, to_values
from rookery.errors import BadInput
from rookery.fields import nest
from rookery.processes import answering
from rookery.runs.files import write_json
from rookery.sweep.console import Console
from rookery.sweep.points import Chooser, make_chooser
from rookery.sweep.records import Folder, Places, Record, Spec
from rookery.sweep.scores import marks, rungs
from rookery.sweep.trial import Trial


def carry_out(folder: Folder, places: Places, console: Console) -> None:
    """Run every trial that is not over; what is known is on disk all the time. Ctrl-C and a
    termination signal end it, and the runs under way save what they have."""
    points = Points(folder, places.concurrent, console)
    own = folder.path / "tune"
    try:
        with terminations_as_interrupts():
            tune.run(
                tune.with_resources(Trial, {"cpu": places.cpus, "gpu": places.gpus}),
                name=own.name,
                storage_path=str(own.parent),
                num_samples=-1,
                search_alg=points,
                scheduler=make_scheduler(folder),
                trial_dirname_creator=lambda trial: trial.trial_id,
                raise_on_failed_trial=False,
                verbose=0,
            )
    finally:
        shutil.rmtree(own, ignore_errors=True)


class Points(Searcher):
    """The bridge to Tune: hands out points, takes results."""

    def __init__(self, folder: Folder, concurrent: int, console: Console):
        super().__init__(metric="score", mode=folder.spec.mode)
        self.folder, self.console, self.concurrent = folder, console, concurrent
        self.chooser: Chooser = make_chooser(folder.spec, folder.records)
        self.again = [record for record in folder.records if not record.over]
        self.running: dict[str, Record] = {}
        compared = [] if folder.spec.grace_steps is None else asha_rungs(folder.spec)
        self.marks = marks(folder.spec.env_steps, compared)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """What a trial is to run: one interrupted earlier, or a new point."""
        if len(self.running) >= self.concurrent:
            return None
        record = self.next_record()
        if record is None:
            return Searcher.FINISHED
        self.running[trial_id] = record
        self.console.show(record)
        return {
            "folder": str(self.folder.trial(record)),
            "seeds": self.folder.spec.run_seeds,
            "metric": self.folder.spec.metric,
            "marks": self.marks,
        }

    def next_record(self) -> Record | None:
        """The next trial whose settings go together; those before it have failed."""
        spec = self.folder.spec
        while True:
            if self.again:
                record = self.again.pop(0)
            elif len(self.folder.records) < spec.samples:
                tried = [record.values for record in self.folder.records]
                values = self.chooser.point(len(tried) + 1, tried)
                if values is None:
                    return None
                record = self.folder.add(values)
            else:
                return None
            record.reports.clear()
            self.folder.keep(record)
            try:
                config = from_values(spec.config, nest(record.values))
            except BadInput as error:
                self.end(record, "failed", str(error))
                continue
            write_json(self.folder.trial(record) / "config.json", to_values(config))
            return record

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Take a report."""
        self.note(self.running[trial_id], result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take the end: by itself, by ASHA, or by a failure."""
        record = self.running.pop(trial_id)
        if error or result is None:
            self.end(record, "failed", "the Ray worker of the trial was lost")
            return
        self.note(record, result)
        self.end(record, result.get("ended", "stopped"), result.get("reason"))

    def note(self, record: Record, result: dict[str, Any]) -> None:
        """Write down a report that has a score."""
        if "score" not in result:
            return
        record.env_steps, record.score = int(result["env_steps"]), float(result["score"])
        record.seed_scores = list(result["seed_scores"])
        record.reports.append([record.env_steps, record.score])
        self.folder.keep(record)
        self.console.show(record)

    def end(self, record: Record, status: Any, reason: str | None) -> None:
        """A trial is over."""
        record.status, record.reason = status, reason
        self.folder.keep(record)
        self.chooser.learn(record)
        self.console.show(record)

    def save(self, checkpoint_path: str) -> None:
        """Tune asks for a file; the sweep's own folder has all that is needed to go on."""
        open(checkpoint_path, "w").close()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to read back."""


def asha_rungs(spec: Spec) -> list[int]:
    """The steps at which ASHA compares trials."""
    assert spec.grace_steps is not None
    return rungs(spec.env_steps, spec.grace_steps, spec.reduction)


def make_scheduler(folder: Folder) -> Any:
    """ASHA, knowing of all trials that are over; or none that stops a trial."""
    spec = folder.spec
    if spec.grace_steps is None:
        return FIFOScheduler()
    scheduler = ASHAScheduler(
        time_attr="env_steps",
        metric="score",
        mode=spec.mode,
        grace_period=spec.grace_steps,
        max_t=spec.env_steps,
        reduction_factor=spec.reduction,
        # A trial ends by itself, when its runs have written their results.
        stop_last_trials=False,
    )
    for record in folder.records:
        if record.over:
            replay(scheduler, record)
    return scheduler


def replay(scheduler: Any, record: Record) -> None:
    """Tell the scheduler of a trial that was over before this sitting."""
    stand_in = SimpleNamespace(trial_id=f"earlier_{record.number}")
    scheduler.on_trial_add(None, stand_in)
    for env_steps, score in record.reports:
        scheduler.on_trial_result(None, stand_in, {"env_steps": env_steps, "score": score})
    scheduler.on_trial_remove(None, stand_in)


@contextmanager
def terminations_as_interrupts() -> Iterator[None]:
    """A termination signal is as Ctrl-C, which Tune takes as a wish to end; a hang-up too, unless
    it is ignored, as under nohup."""
    interrupt = signal.getsignal(signal.SIGINT)
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def end(*_: Any) -> None:
        # A sweep in the background of a script is deaf to Ctrl-C, but while Tune answers it.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    try:
        with answering(numbers, end):
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            # Tune leaves its own behind.
            signal.signal(signal.SIGINT, interrupt)
