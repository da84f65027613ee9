"""rookery scaling ALGO ENV"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rookery.backends.factory import make_algorithm, spaces_of
from rookery.cli.printing import print_json
from rookery.cli.train import TrainOptions
from rookery.config import RunConfig, default_config, resolve
from rookery.envs import make_env
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.machine import cores
from rookery.reports import require_matplotlib, scaling_plot
from rookery.runs.run import default_name
from rookery.scaling.points import Mode, Point, parse_points, plan_studies, unique_points
from rookery.scaling.predict import Coupling
from rookery.scaling.reference import read_reference
from rookery.scaling.study import Study
from rookery.scaling.tables import tables
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
        require(self.repeat >= 1, f"repeat must be at least 1, got {self.repeat}")
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
    picture = scaling_plot.draw_scaling(trials.folder) if options.plot else None
    if options.json:
        print_json(trials.to_dict() | {"picture": picture})
    else:
        print(f"\n{tables(trials.study.results())}\n")
        if trials.reference is not None:
            print(f"{trials.reference.table(trials.study.rows('weak'))}\n")
        print(f"{trials.study.status}: {trials.folder}")
    return {"finished": 0, "failed": 1, "interrupted": 130}[trials.study.status]


def plan_scaling(args: Sequence[str]) -> tuple[Trials, ScalingOptions]:
    """Return the runs and options, validated before anything runs."""
    names = list(itertools.takewhile(lambda arg: not arg.startswith("-"), args))[:2]
    require(len(names) == 2, "scaling: expected an algorithm and an environment, then --points")
    own, of_train = flags_of(ScalingOptions), flags_of(TrainOptions)
    known = flags_of(default_config(*names)) | of_train | own
    given, extra = parse_flags(args[2:], known)
    require(
        not extra,
        f'expected one algorithm and one environment, got "{extra[0] if extra else ""}" too',
    )
    for name, remedy in TAKEN.items():
        require(
            name not in given, f"--{name.replace('_', '-')} cannot be used with scaling; {remedy}"
        )
    options = from_dict(ScalingOptions, {key: given.pop(key) for key in list(given) if key in own})
    studies = plan_studies(parse_points(options.points), options.mode)
    if options.reference is not None:
        given.setdefault("threads", "1")
    settings: dict[str, Any] = {
        "algorithm": names[0],
        "environment": names[1],
        **STUDY_DEFAULTS,
        **given,
    }
    # All points use the backend of the point with the most actors.
    config = point_config(settings, max(unique_points(studies)))
    reference = None
    if options.reference is not None:
        reference = read_reference(options.reference, config.threads or 1)
    check_environment(config)
    if options.plot:
        require_matplotlib("a picture of the study (--no-plot leaves it out)")
    trials = Trials(
        *(names[0], names[1], config.chosen_backend),
        options={**STUDY_DEFAULTS, **given},
        study=Study(studies, options.repeat, cores(), coupling_of(config)),
        minutes=options.minutes,
        folder=Path(options.out or Path("scaling") / default_name(settings)),
        console=sys.stderr if options.json else sys.stdout,
        reference=reference,
    )
    return trials, options


def point_config(given: Mapping[str, Any], point: Point) -> RunConfig:
    """Return the config of a point's runs, as `rookery train` would make it."""
    presets = {key: given[key] for key in ("preset", "no_preset") if key in given}
    choice = from_dict(TrainOptions, presets)
    settings = {key: value for key, value in given.items() if key not in presets}
    overrides = nest({**settings, "actors": point.actors, "envs": point.envs})
    algorithm, environment = given["algorithm"], given["environment"]
    return resolve(algorithm, environment, overrides, choice.preset, not choice.no_preset).config


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
