"""One trial of a sweep: a `rookery train` process per seed, reported to Tune as one.

Its score is the mean of the metric over its seeds at equal environment steps. The workers of Ray
import this file, so it imports no torch.
"""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ray import tune

from rookery.errors import RookeryError, nearest
from rookery.processes import ProcessTree
from rookery.runs.files import Row, number
from rookery.runs.run import Run
from rookery.scaling.trials import failure_reason

REPORTS = 20
"""Number of reports of a trial, evenly spaced."""
TRIAL_POLL_S = 0.2


class SeedProgress(NamedTuple):
    """The rows of progress.csv of one run of a trial; `is_over` once the run ended."""

    rows: Sequence[Row]
    is_over: bool

    @property
    def reached(self) -> int:
        """Environment steps of the last report."""
        return int(number(self.rows[-1], "env_steps")) if self.rows else 0


class Score(NamedTuple):
    """Score of a trial after `env_steps`: mean over the seeds, and the value of each seed."""

    env_steps: int
    score: float
    seed_scores: list[float]


def rungs(env_steps: int, grace_steps: int, reduction: float) -> list[int]:
    """Return the environment steps at which ASHA compares trials."""
    powers = (math.ceil(grace_steps * reduction**k) for k in itertools.count())
    return list(itertools.takewhile(lambda steps: steps < env_steps, powers))


def report_steps(env_steps: int, compared: Sequence[int] = ()) -> list[int]:
    """Return the environment steps at which a trial reports before its end: evenly spaced, and
    those in `compared`."""
    even = {env_steps * part // REPORTS for part in range(1, REPORTS)}
    return sorted({mark for mark in even | set(compared) if 0 < mark < env_steps})


def passed(seeds: Sequence[SeedProgress], env_steps: int) -> bool:
    """True if every run ended or has made `env_steps` steps."""
    return all(seed.is_over or seed.reached >= env_steps for seed in seeds)


def at_steps(seeds: Sequence[SeedProgress], metric: str, env_steps: int) -> Score | None:
    """Return the score after `env_steps`; None if a run had no value of the metric by then."""
    values = [value_at(seed.rows, metric, env_steps) for seed in seeds]
    known = [value for value in values if value is not None]
    return Score(env_steps, statistics.fmean(known), known) if len(known) == len(seeds) else None


def at_end(seeds: Sequence[SeedProgress], metric: str) -> Score:
    """Return the score of runs that ended, from the last value of each; raise RookeryError if one
    has none."""
    values = []
    for seed in seeds:
        known = [number(row, metric) for row in seed.rows if row.get(metric) is not None]
        if not known:
            columns = list(seed.rows[-1]) if seed.rows else []
            if metric in columns:
                raise RookeryError(f'metric: "{metric}" has no value in any report')
            close = nearest(metric, columns)
            raise RookeryError(f'metric: there is no column "{metric}" in progress.csv.{close}')
        values.append(known[-1])
    if not all(map(math.isfinite, values)):
        raise RookeryError(f"metric: {metric} ended at {', '.join(map(str, values))}")
    return Score(max(seed.reached for seed in seeds), statistics.fmean(values), values)


def value_at(rows: Sequence[Row], metric: str, env_steps: int) -> float | None:
    """Return the metric after `env_steps`, interpolated linearly between reports; the last value
    after the last report, None before the first."""
    before: tuple[float, float] | None = None
    for row in rows:
        if row.get(metric) is None:
            continue
        steps, value = number(row, "env_steps"), number(row, metric)
        if steps == env_steps:
            return value
        if steps > env_steps:
            if before is None:
                return None
            fraction = (env_steps - before[0]) / (steps - before[0])
            return before[1] + fraction * (value - before[1])
        before = steps, value
    return None if before is None else before[1]


class Trial(tune.Trainable):
    """Tune's Trainable. `config` has the trial's folder, its seeds, the metric, and the environment
    steps at which it reports."""

    def setup(self, config: dict[str, Any]) -> None:
        self.metric = config["metric"]
        self.report_steps = list(config["report_steps"])
        self.runs = [SeedRun(Path(config["folder"]), seed) for seed in config["seeds"]]
        for run in self.runs:
            run.begin()

    def step(self) -> dict[str, Any]:
        """Wait until all runs have reached the next report, all have ended, or one has failed."""
        while True:
            try:
                seeds = [run.progress() for run in self.runs]
                if all(seed.is_over for seed in seeds):
                    score = at_end(seeds, self.metric)
                    return score._asdict() | {"ended": "finished", "done": True}
            except RookeryError as error:
                self.cleanup()
                return {"ended": "failed", "reason": str(error), "done": True}
            while self.report_steps and passed(seeds, self.report_steps[0]):
                reached = at_steps(seeds, self.metric, self.report_steps.pop(0))
                if reached is not None:
                    return reached._asdict()
            time.sleep(TRIAL_POLL_S)

    def cleanup(self) -> None:
        """Ask all runs to save and end, then make sure that they did."""
        trees = [run.tree for run in self.runs if run.tree is not None]
        for tree in trees:
            tree.terminate()
        for tree in trees:
            tree.end()


class SeedRun:
    """The training process of one seed."""

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.seed = seed
        self.run = Run(folder / f"seed_{seed}", {})
        self.console = folder / f"seed_{seed}.txt"
        self.tree: ProcessTree | None = None

    def begin(self) -> None:
        """Start the run, or resume it if it was interrupted; do nothing if it has finished."""
        result = self.run.result
        if result is not None and result["status"] not in ("interrupted", "failed"):
            return
        train = [sys.executable, "-m", "rookery", "train"]
        if any(self.run.checkpoints.glob("step_*")):
            command = [*train, "--resume", str(self.run.path)]
        else:
            shutil.rmtree(self.run.path, ignore_errors=True)
            command = [*train, "--config", str(self.folder / "config.json")]
            command += [f"--seed={self.seed}", f"--runs-dir={self.folder}"]
            command += [f"--name={self.run.name}"]
        with open(self.console, "a", encoding="utf-8") as output:
            self.tree = ProcessTree(command, stdout=output, stderr=output)

    def progress(self) -> SeedProgress:
        """Return the progress; raise RookeryError if the run failed."""
        status = None if self.tree is None else self.tree.wait(0)
        if status:
            text = self.console.read_text(encoding="utf-8", errors="replace")
            raise RookeryError(f"seed {self.seed}: {failure_reason(text, status)}")
        return SeedProgress(self.run.progress(), self.tree is None or status == 0)
