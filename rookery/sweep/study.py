"""Run the trials of a sweep on Ray Tune and write their results to its folder."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from rookery.config import from_values, to_values
from rookery.errors import BadInput
from rookery.fields import nest
from rookery.processes import termination_as_interrupt
from rookery.runs.files import write_json
from rookery.sweep.points import Chooser, make_chooser
from rookery.sweep.records import SweepFolder, TrialRecord, TrialResources
from rookery.sweep.results import SweepConsole
from rookery.sweep.trial import Trial, report_steps, rungs


def run_trials(folder: SweepFolder, resources: TrialResources, console: SweepConsole) -> None:
    """Run every trial that has not ended. All results are on disk at all times. Ctrl-C and
    termination signals end the sweep; the runs in progress save checkpoints."""
    points = TuneSearcher(folder, resources.concurrent, console)
    own = folder.path / "tune"
    try:
        with termination_as_interrupt():
            tune.run(
                tune.with_resources(Trial, {"cpu": resources.cpus, "gpu": resources.gpus}),
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


class TuneSearcher(Searcher):
    """Tune's search algorithm: gives it points and receives the results."""

    def __init__(self, folder: SweepFolder, concurrent: int, console: SweepConsole):
        super().__init__(metric="score", mode=folder.spec.mode)
        self.folder, self.console, self.concurrent = folder, console, concurrent
        self.chooser: Chooser = make_chooser(folder.spec, folder.records)
        self.interrupted = [record for record in folder.records if not record.is_over]
        self.running: dict[str, TrialRecord] = {}
        spec, compared = folder.spec, []
        if spec.grace_steps is not None:
            compared = rungs(spec.env_steps, spec.grace_steps, spec.reduction)
        self.report_steps = report_steps(spec.env_steps, compared)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the config of a trial: an interrupted one, or one at a new point."""
        if len(self.running) >= self.concurrent:
            return None
        record = self.next_record()
        if record is None:
            return Searcher.FINISHED
        self.running[trial_id] = record
        self.console.show(record)
        return {
            "folder": str(self.folder.trial_path(record)),
            "seeds": self.folder.spec.run_seeds,
            "metric": self.folder.spec.metric,
            "report_steps": self.report_steps,
        }

    def next_record(self) -> TrialRecord | None:
        """Return the next trial with a valid config; mark trials with an invalid one as failed."""
        spec = self.folder.spec
        while True:
            if self.interrupted:
                record = self.interrupted.pop(0)
            elif len(self.folder.records) < spec.samples:
                tried = [record.values for record in self.folder.records]
                values = self.chooser.point(len(tried) + 1, tried)
                if values is None:
                    return None
                record = self.folder.add_trial(values)
            else:
                return None
            record.reports.clear()
            self.folder.write_trial(record)
            try:
                config = from_values(spec.config, nest(record.values))
            except BadInput as error:
                self.end(record, "failed", str(error))
                continue
            write_json(self.folder.trial_path(record) / "config.json", to_values(config))
            return record

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.add_report(self.running[trial_id], result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record the end: finished, stopped by ASHA, or failed."""
        record = self.running.pop(trial_id)
        if error or result is None:
            self.end(record, "failed", "the Ray worker of the trial was lost")
            return
        self.add_report(record, result)
        self.end(record, result.get("ended", "stopped"), result.get("reason"))

    def add_report(self, record: TrialRecord, result: dict[str, Any]) -> None:
        """Add a report that has a score to the record."""
        if "score" not in result:
            return
        record.env_steps, record.score = int(result["env_steps"]), float(result["score"])
        record.seed_scores = list(result["seed_scores"])
        record.reports.append([record.env_steps, record.score])
        self.folder.write_trial(record)
        self.console.show(record)

    def end(self, record: TrialRecord, status: Any, reason: str | None) -> None:
        record.status, record.reason = status, reason
        self.folder.write_trial(record)
        self.chooser.learn(record)
        self.console.show(record)

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, which Tune requires: the sweep's folder has all state."""
        open(checkpoint_path, "w").close()

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: see `save`."""


def make_scheduler(folder: SweepFolder) -> Any:
    """Return ASHA with the reports of all ended trials, or a scheduler that stops no trial."""
    spec = folder.spec
    if spec.grace_steps is None:
        return FIFOScheduler()
    scheduler: Any = ASHAScheduler(
        time_attr="env_steps",
        metric="score",
        mode=spec.mode,
        grace_period=spec.grace_steps,
        max_t=spec.env_steps,
        reduction_factor=spec.reduction,
        # A trial ends on its own once its runs have written their results.
        stop_last_trials=False,
    )
    for record in folder.records:
        if not record.is_over:
            continue
        # A trial that ended before this process started.
        earlier = SimpleNamespace(trial_id=f"earlier_{record.number}")
        scheduler.on_trial_add(None, earlier)
        for env_steps, score in record.reports:
            scheduler.on_trial_result(None, earlier, {"env_steps": env_steps, "score": score})
        scheduler.on_trial_remove(None, earlier)
    return scheduler
