"""rookery scaling ALGO ENV"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rookery.backends.factory import make_algorithm, spaces_of
from rookery.cli.train import TrainOptions, leading_names, parse_settings
from rookery.config import RunConfig, default_config, resolve
from rookery.envs import make_env
from rookery.errors import require
from rookery.fields import flag_name, from_dict, help_text, nest, require_least
from rookery.machine import cores
from rookery.reports.figures import require_matplotlib
from rookery.reports.scaling import draw_scaling
from rookery.runs.files import to_json
from rookery.runs.run import default_name
from rookery.scaling.speed import Coupling
from rookery.scaling.study import Mode, Study, parse_points, plan_studies, unique_points
from rookery.scaling.tables import read_reference, tables
from rookery.scaling.trials import Trials

USAGE = """rookery scaling ALGO ENV --points 1-8,2-8,4-8 [options] [options of train]

Measure how speed grows with the number of actors. Every point, ACTORS-ENVS, is a 'rookery train'.
"""
TAKEN = {
    "actors": "--points says how many",
    "envs": "--points says how many",
    "stop_minutes": "use --minutes",
    "runs_dir": "use --out",
    "name": "use --out",
    "resume": "every point is a new run",
    "config": "name the algorithm and the environment, and give the settings as options",
}
"""Options of `train` that the study sets itself, and what to use instead."""
STUDY_DEFAULTS = {"env_steps": "1_000_000_000", "eval_steps": "none", "keep_checkpoints": "1"}
"""Settings of every run unless given: only time ends it, and no evaluation interrupts it."""


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Options of the command, beside those of `train`."""

    points: str
    """ACTORS-ENVS,...: actors, and environments of each; in a strong study, of all together."""
    mode: Mode = "weak"
    """weak: environments grow with the actors; strong: a fixed number is divided; or both."""
    repeat: int = 3
    """Number of runs of each point; the points take turns."""
    minutes: float = 0.5
    """Duration of each run; its first 30 % are left out of the measurement."""
    out: str | None = None
    """Folder for results and runs; none: a new one in scaling/."""
    reference: str | None = None
    """CSV of another system's speeds to compare with: series, environments, threads,
    steps_per_second. Actors then use one thread each unless --threads is given."""
    plot: bool = True
    """Draw scaling.png."""
    json: bool = False
    """Print the results as one JSON object on standard output."""

    def __post_init__(self) -> None:
        require_least(self, 1, ["repeat"])
        require(self.minutes > 0, f"minutes must be positive, got {self.minutes}")
        require(
            self.reference is None or self.mode == "weak",
            f"--reference is for --mode weak, got {self.mode}",
        )


def main(args: Sequence[str]) -> int:
    """Run the study and print; return 0, 1 if a run failed, 130 if interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(ScalingOptions))
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    trials, options = plan_scaling(args)
    trials.carry_out()
    picture = draw_scaling(trials.folder) if options.plot else None
    if options.json:
        print(to_json(trials.to_dict() | {"picture": picture}))
    else:
        print(f"\n{tables(trials.study.results())}\n")
        if trials.reference is not None:
            print(f"{trials.reference.table(trials.study.rows('weak'))}\n")
        print(f"{trials.study.status}: {trials.folder}")
    return {"finished": 0, "failed": 1, "interrupted": 130}[trials.study.status]


def plan_scaling(args: Sequence[str]) -> tuple[Trials, ScalingOptions]:
    """Return the runs and options, validated before anything runs."""
    names = leading_names(args)
    require(len(names) == 2, "scaling: expected an algorithm and an environment, then --points")
    algorithm, environment = names
    base = default_config(algorithm, environment)
    given, own, of_train = parse_settings(args[2:], base, ScalingOptions, TrainOptions)
    for name, remedy in TAKEN.items():
        usable = name not in given and name not in of_train
        require(usable, f"{flag_name(name)} cannot be used with scaling; {remedy}")
    options, train = from_dict(ScalingOptions, own), from_dict(TrainOptions, of_train)
    studies = plan_studies(parse_points(options.points), options.mode)
    if options.reference is not None:
        given.setdefault("threads", "1")
    settings: dict[str, Any] = {**STUDY_DEFAULTS, **given}
    # All points use the backend of the point with the most actors.
    most = max(unique_points(studies))
    overrides = nest({**settings, "actors": most.actors, "envs": most.envs})
    use_preset = not train.no_preset
    config = resolve(algorithm, environment, overrides, train.preset, use_preset).config
    path, threads = options.reference, config.threads or 1
    reference = None if path is None else read_reference(path, threads)
    check_environment(config)
    if options.plot:
        require_matplotlib("a picture of the study (--no-plot leaves it out)")
    named = {"algorithm": algorithm, "environment": environment}
    trials = Trials(
        *(algorithm, environment, config.chosen_backend),
        options={**settings, **of_train},
        study=Study(studies, options.repeat, cores(), coupling_of(config)),
        minutes=options.minutes,
        folder=Path(options.out or Path("scaling") / default_name(named)),
        console=sys.stderr if options.json else sys.stdout,
        reference=reference,
    )
    return trials, options


def check_environment(config: RunConfig) -> None:
    """Raise BadInput unless the algorithm supports the environment."""
    env = make_env(config.environment, config.env)
    make_algorithm(config, spaces_of(env), torch.device("cpu"))
    env.close()


def coupling_of(config: RunConfig) -> Coupling:
    """Return how learner and actors depend on each other."""
    if config.chosen_backend != "threads":
        return "turns"
    return "free" if getattr(config.algo, "samples_per_insert", None) is None else "ratio"
