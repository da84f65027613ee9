"""One trial of a sweep: a `rookery train` process per seed, reported to Tune as one."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ray import tune

from rookery.errors import RookeryError
from rookery.processes import ProcessTree
from rookery.runs.run import Run
from rookery.scaling.child import failure_reason
from rookery.sweep.scores import Score, SeedProgress, at_end, at_steps, passed

TRIAL_POLL_S = 0.2


class Trial(tune.Trainable):
    """Tune's Trainable. `config` has the trial's folder, its seeds, the metric, and the environment
    steps at which it reports."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the runs."""
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
                    result = tune_result(at_end(seeds, self.metric))
                    return result | {"ended": "finished", "done": True}
            except RookeryError as error:
                self.cleanup()
                return {"ended": "failed", "reason": str(error), "done": True}
            while self.report_steps and passed(seeds, self.report_steps[0]):
                score = at_steps(seeds, self.metric, self.report_steps.pop(0))
                if score is not None:
                    return tune_result(score)
            time.sleep(TRIAL_POLL_S)

    def cleanup(self) -> None:
        """Ask all runs to save and end, then make sure that they did."""
        for run in self.runs:
            run.ask_to_end()
        for run in self.runs:
            run.end()


def tune_result(score: Score) -> dict[str, Any]:
    """Return a score as a result for Tune."""
    return {"env_steps": score.env_steps, "score": score.mean, "seed_scores": score.seeds}


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
        if self.is_over():
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

    def is_over(self) -> bool:
        """True if the run finished and did not fail."""
        result = self.run.result
        return result is not None and result["status"] not in ("interrupted", "failed")

    def progress(self) -> SeedProgress:
        """Return the progress; raise RookeryError if the run failed."""
        status = None if self.tree is None else self.tree.wait(0)
        if status:
            text = self.console.read_text(encoding="utf-8", errors="replace")
            raise RookeryError(f"seed {self.seed}: {failure_reason(text, status)}")
        return SeedProgress(self.run.progress(), self.tree is None or status == 0)

    def ask_to_end(self) -> None:
        """Ask the process to save and end."""
        if self.tree is not None:
            self.tree.terminate()

    def end(self) -> None:
        """End the process and its children."""
        if self.tree is not None:
            self.tree.end()
