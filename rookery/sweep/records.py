"""A sweep's folder: what was asked, and what is known of every trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from rookery.errors import require
from rookery.fields import from_dict, to_dict
from rookery.runs.files import new_folder, read_json, write_json, writing
from rookery.sweep.space import Space, Values, parse

Search = Literal["random", "grid", "optuna"]
Mode = Literal["max", "min"]
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A sweep, fully described."""

    algorithm: str
    """What learns."""
    environment: str
    """What it learns in."""
    space: dict[str, dict[str, Any]]
    """The searched settings, such as {"algo.gamma": {"uniform": [0.9, 1]}}."""
    config: dict[str, Any]
    """All settings of a run, before those of a trial are laid over them."""
    search: Search
    """How points are chosen."""
    samples: int
    """How many trials there are."""
    seeds: int
    """Runs of each trial; the first has the config's seed, the next one more."""
    metric: str
    """Column of progress.csv that says how good a run is."""
    mode: Mode
    """Whether more of it is better, or less."""
    grace_steps: int | None
    """ASHA: steps before a trial may be stopped; none: no trial is stopped."""
    reduction: float
    """ASHA: one in so many trials goes on from a rung to the next."""

    @property
    def dimensions(self) -> Space:
        """The searched settings."""
        parsed = {name: parse(name, written) for name, written in self.space.items()}
        return {name: dimension for name, dimension in parsed.items() if dimension is not None}

    @property
    def env_steps(self) -> int:
        """Steps of a run."""
        return int(self.config["env_steps"])

    @property
    def run_seeds(self) -> list[int]:
        """The seeds of a trial's runs."""
        first = int(self.config["seed"])
        return list(range(first, first + self.seeds))

    @property
    def better(self) -> Callable[..., Any]:
        """`max` or `min`."""
        return max if self.mode == "max" else min


@dataclass(frozen=True, kw_only=True)
class Places:
    """What a trial takes of the cluster, and how many go at once."""

    cpus: float
    gpus: float
    concurrent: int


@dataclass
class Record:
    """A trial: its point and what came of it so far."""

    number: int
    values: Values
    status: Status = "running"
    env_steps: int = 0
    score: float | None = None
    """Mean over the seeds at `env_steps`."""
    seed_scores: list[float] = field(default_factory=list)
    reports: list[list[float]] = field(default_factory=list)
    """Steps and score of every report."""
    reason: str | None = None
    """Why it failed."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.status != "running"


@dataclass
class Folder:
    """sweep.json, and trials/NNN with config.json, trial.json and the runs of each trial."""

    path: Path
    spec: Spec
    records: list[Record] = field(default_factory=list)

    @classmethod
    def create(cls, path: Path, spec: Spec) -> Self:
        """A new folder."""
        new_folder(path, "sweep")
        with writing(path):
            (path / "trials").mkdir()
        write_json(path / "sweep.json", to_dict(spec))
        return cls(path.resolve(), spec)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The sweep in a folder, with all its trials."""
        file = path / "sweep.json"
        require(file.is_file(), f"resume: {path} is no sweep's folder, it has no sweep.json")
        spec = from_dict(Spec, read_json(file))
        files = sorted(path.glob("trials/*/trial.json"))
        records = [Record(**read_json(found)) for found in files]
        return cls(path.resolve(), spec, records)

    def extend(self, samples: int) -> None:
        """Ask for more trials."""
        self.spec = dataclasses.replace(self.spec, samples=samples)
        write_json(self.path / "sweep.json", to_dict(self.spec))

    def trial(self, record: Record) -> Path:
        """The folder of a trial."""
        return self.path / "trials" / f"{record.number:03d}"

    def add(self, values: Values) -> Record:
        """A new trial, not yet on disk."""
        record = Record(len(self.records) + 1, values)
        self.records.append(record)
        return record

    def keep(self, record: Record) -> None:
        """Write what is known of a trial."""
        folder = self.trial(record)
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_json(folder / "trial.json", dataclasses.asdict(record))

    @property
    def status(self) -> str:
        """How the sweep ended, if it did now."""
        over = all(record.over for record in self.records)
        if not over or len(self.records) < self.spec.samples:
            return "interrupted"
        return "finished" if self.best is not None else "failed"

    @property
    def best(self) -> Record | None:
        """The best trial: among those that ran to their end, else among those stopped."""
        for status in ("finished", "stopped"):
            scored = [r for r in self.records if r.status == status and r.score is not None]
            if scored:
                return self.spec.better(scored, key=lambda record: record.score)
        return None
