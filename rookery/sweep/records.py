"""A sweep's folder: its spec, and the state and scores of every trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from rookery.errors import require
from rookery.fields import from_dict, to_dict
from rookery.runs.files import new_folder, read_json, write_json, writing
from rookery.sweep.space import Space, Values, split_settings

Search = Literal["random", "grid", "optuna"]
ScoreMode = Literal["max", "min"]
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """A sweep, fully described."""

    algorithm: str
    """Algorithm of all runs."""
    environment: str
    """Environment of all runs."""
    space: dict[str, dict[str, Any]]
    """The searched settings, such as {"algo.gamma": {"uniform": [0.9, 1]}}."""
    config: dict[str, Any]
    """All settings of a run, before those of a trial override them."""
    search: Search
    """Method that chooses the points."""
    samples: int
    """Number of trials."""
    seeds: int
    """Runs of each trial; the first has the seed in `config`, the next that plus one."""
    metric: str
    """Column of progress.csv to optimize."""
    mode: ScoreMode
    """Maximize or minimize the metric."""
    grace_steps: int | None
    """ASHA: steps before a trial may be stopped; none: no trial is stopped."""
    reduction: float
    """ASHA: 1 trial in this many continues from a rung to the next."""

    @property
    def dimensions(self) -> Space:
        return split_settings(self.space)[1]

    @property
    def env_steps(self) -> int:
        return int(self.config["env_steps"])

    @property
    def run_seeds(self) -> list[int]:
        first = int(self.config["seed"])
        return list(range(first, first + self.seeds))


class TrialResources(NamedTuple):
    """CPUs and GPUs of one trial, and how many trials run at the same time."""

    cpus: float
    gpus: float
    concurrent: int


@dataclass
class TrialRecord:
    """A trial: its point in the space, its state and its scores so far."""

    number: int
    values: Values
    status: Status = "running"
    env_steps: int = 0
    score: float | None = None
    """Mean over the seeds at `env_steps`."""
    seed_scores: list[float] = field(default_factory=list)
    reports: list[list[float]] = field(default_factory=list)
    """Pairs of environment steps and score, one for every report."""
    reason: str | None = None
    """Why it failed."""

    @property
    def is_over(self) -> bool:
        """True if the trial ended, in whatever way."""
        return self.status != "running"


@dataclass
class SweepFolder:
    """sweep.json, and trials/NNN with config.json, trial.json and the runs of each trial."""

    path: Path
    spec: SweepSpec
    records: list[TrialRecord] = field(default_factory=list)

    @classmethod
    def create(cls, path: Path, spec: SweepSpec) -> Self:
        """Create the folder of a new sweep."""
        new_folder(path, "sweep")
        with writing(path):
            (path / "trials").mkdir()
        write_json(path / "sweep.json", to_dict(spec))
        return cls(path.resolve(), spec)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a sweep with all its trials."""
        file = path / "sweep.json"
        require(file.is_file(), f"resume: {path} is not a sweep folder: it has no sweep.json")
        spec = from_dict(SweepSpec, read_json(file))
        files = sorted(path.glob("trials/*/trial.json"))
        records = [TrialRecord(**read_json(found)) for found in files]
        return cls(path.resolve(), spec, records)

    def extend(self, samples: int) -> None:
        self.spec = dataclasses.replace(self.spec, samples=samples)
        write_json(self.path / "sweep.json", to_dict(self.spec))

    def trial_path(self, record: TrialRecord) -> Path:
        return self.path / "trials" / f"{record.number:03d}"

    def add_trial(self, values: Values) -> TrialRecord:
        """Return a new trial, not yet written to disk."""
        record = TrialRecord(len(self.records) + 1, values)
        self.records.append(record)
        return record

    def write_trial(self, record: TrialRecord) -> None:
        folder = self.trial_path(record)
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_json(folder / "trial.json", dataclasses.asdict(record))

    @property
    def status(self) -> str:
        """`finished`, `interrupted` (trials are missing) or `failed` (no trial has a score)."""
        over = all(record.is_over for record in self.records)
        if not over or len(self.records) < self.spec.samples:
            return "interrupted"
        return "finished" if self.best is not None else "failed"

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best score among the finished ones, else among those stopped early."""
        better: Callable[..., TrialRecord] = max if self.spec.mode == "max" else min
        for status in ("finished", "stopped"):
            scored = [r for r in self.records if r.status == status and r.score is not None]
            if scored:
                return better(scored, key=lambda record: record.score)
        return None
