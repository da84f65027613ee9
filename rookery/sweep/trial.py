"""One trial: its seeds are runs of `rookery train`, side by side, reported to Tune as one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ray import tune

from rookery.backends.ranks.launch import start
from rookery.errors import RookeryError
from rookery.runs.run import Run
from rookery.scaling.child import end, reason, signal_group
from rookery.sweep.scores import Score, Seed, at_end, at_steps, passed

POLL_S = 0.2


class Trial(tune.Trainable):
    """What Tune runs: `config` has the trial's folder, its seeds, the metric, and the steps at
    which it reports."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the runs."""
        self.metric = config["metric"]
        self.marks = list(config["marks"])
        self.runs = [SeedRun(Path(config["folder"]), seed) for seed in config["seeds"]]
        for run in self.runs:
            run.begin()

    def step(self) -> dict[str, Any]:
        """Wait until all runs have come to the next mark, are over, or one has failed."""
        while True:
            try:
                seeds = [run.look() for run in self.runs]
                if all(seed.over for seed in seeds):
                    return told(at_end(seeds, self.metric)) | {"ended": "finished", "done": True}
            except RookeryError as error:
                self.cleanup()
                return {"ended": "failed", "reason": str(error), "done": True}
            while self.marks and passed(seeds, self.marks[0]):
                score = at_steps(seeds, self.metric, self.marks.pop(0))
                if score is not None:
                    return told(score)
            time.sleep(POLL_S)

    def cleanup(self) -> None:
        """End the runs; they save what they have."""
        for run in self.runs:
            run.ask_to_end()
        for run in self.runs:
            run.end()


def told(score: Score) -> dict[str, Any]:
    """A score in Tune's form."""
    return {"env_steps": score.env_steps, "score": score.mean, "seed_scores": score.seeds}


class SeedRun:
    """A run of a trial, in a process of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.seed = seed
        self.run = Run(folder / f"seed_{seed}", {})
        self.console = folder / f"seed_{seed}.txt"
        self.process: subprocess.Popen | None = None

    def begin(self) -> None:
        """Start it, or go on with one that was interrupted; one that is over stays as it is."""
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
            self.process = start(command, dict(os.environ), output.fileno(), output)

    def is_over(self) -> bool:
        """Whether it ended by itself, and well."""
        result = self.run.result
        return result is not None and result["status"] not in ("interrupted", "failed")

    def look(self) -> Seed:
        """How far it is; RookeryError if it failed."""
        status = None if self.process is None else self.process.poll()
        if status:
            text = self.console.read_text(encoding="utf-8", errors="replace")
            raise RookeryError(f"seed {self.seed}: {reason(text, status)}")
        return Seed(self.run.progress(), self.process is None or status == 0)

    def ask_to_end(self) -> None:
        """Ask it to save and leave."""
        if self.process is not None and self.process.poll() is None:
            signal_group(self.process.pid, signal.SIGTERM)

    def end(self) -> None:
        """End it, with whatever it started."""
        if self.process is not None and self.process.poll() is None:
            end(self.process)
