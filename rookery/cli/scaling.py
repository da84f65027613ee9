"""rookery scaling ALGO ENV"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rookery.backends.components import spaces_of
from rookery.backends.factory import make_algorithm
from rookery.cli.printing import print_json
from rookery.cli.train import Options as TrainOptions
from rookery.config import RunConfig, default_config, resolve
from rookery.envs import make_env
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.machine import cores
from rookery.reports import require_matplotlib, scaling_plot
from rookery.runs.run import default_name
from rookery.scaling.points import Mode, Point, every_point, parse_points, plan_studies
from rookery.scaling.predict import Coupling
from rookery.scaling.reference import read_reference
from rookery.scaling.study import Study
from rookery.scaling.tables import tables
from rookery.scaling.trials import Trials

USAGE = """rookery scaling ALGO ENV --points 1-8,2-8,4-8 [options] [options of train]

How speed grows with the actors: every point, ACTORS-ENVS, is a run of 'rookery train'.
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
"""Options of `train` that are the study's own to give, and what to do instead."""
UNDISTURBED = {"env_steps": "1_000_000_000", "eval_steps": "none", "keep_checkpoints": "1"}
"""Settings of every run unless given: time ends it, and nothing interrupts its pace."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command that are none of `train`."""

    points: str
    """ACTORS-ENVS,...: actors, and environments of each; of all together on a strong study."""
    mode: Mode = "weak"
    """Whether environments grow with the actors (weak) or are shared out (strong), or both."""
    repeat: int = 3
    """How often each point is run; the points take turns."""
    minutes: float = 0.5
    """How long each run lasts; its first 30 % are left out."""
    out: str | None = None
    """Folder of the results and the runs; none: a new one in scaling/."""
    reference: str | None = None
    """CSV of another study's figures to set beside these: series, environments, threads,
    steps_per_second. Actors then compute with one thread each unless --threads says more."""
    plot: bool = True
    """Whether scaling.png is drawn."""
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
    """Measure and print; 0, 1 if a run failed, 130 if interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    trials, options = plan(args)
    trials.carry_out()
    picture = scaling_plot.draw(trials.folder) if options.plot else None
    if options.json:
        print_json(trials.told() | {"picture": picture})
    else:
        print(f"\n{tables(trials.study.results())}\n")
        if trials.reference is not None:
            print(f"{trials.reference.table(trials.study.rows('weak'))}\n")
        print(f"{trials.study.status}: {trials.folder}")
    return {"finished": 0, "failed": 1, "interrupted": 130}[trials.study.status]


def plan(args: Sequence[str]) -> tuple[Trials, Options]:
    """What is to be run, checked before anything is."""
    names = list(itertools.takewhile(lambda arg: not arg.startswith("-"), args))[:2]
    require(len(names) == 2, "scaling: name an algorithm and an environment, then --points")
    own, of_train = flags_of(Options), flags_of(TrainOptions)
    known = flags_of(default_config(*names)) | of_train | own
    given, extra = parse_flags(args[2:], known)
    require(not extra, f'"{extra[0] if extra else ""}": one algorithm and one environment, please')
    for name, remedy in TAKEN.items():
        require(name not in given, f"--{name.replace('_', '-')} is not for a study; {remedy}")
    options = from_dict(Options, {key: given.pop(key) for key in list(given) if key in own})
    studies = plan_studies(parse_points(options.points), options.mode)
    if options.reference is not None:
        given.setdefault("threads", "1")
    told: dict[str, Any] = {"algorithm": names[0], "environment": names[1], **UNDISTURBED, **given}
    # The backend of the point with the most actors is that of all.
    config = settle(told, max(every_point(studies)))
    reference = None
    if options.reference is not None:
        reference = read_reference(options.reference, config.threads or 1)
    check_environment(config)
    if options.plot:
        require_matplotlib("a picture of the study (--no-plot leaves it out)")
    trials = Trials(
        *(names[0], names[1], config.chosen_backend),
        options={**UNDISTURBED, **given},
        study=Study(studies, options.repeat, cores(), coupling_of(config)),
        minutes=options.minutes,
        folder=Path(options.out or Path("scaling") / default_name(told)),
        console=sys.stderr if options.json else sys.stdout,
        reference=reference,
    )
    return trials, options


def settle(told: Mapping[str, Any], point: Point) -> RunConfig:
    """The config of a point's runs, as `rookery train` makes it."""
    presets = {key: told[key] for key in ("preset", "no_preset") if key in told}
    choice = from_dict(TrainOptions, presets)
    settings = {key: value for key, value in told.items() if key not in presets}
    overrides = nest({**settings, "actors": point.actors, "envs": point.envs})
    algorithm, environment = told["algorithm"], told["environment"]
    return resolve(algorithm, environment, overrides, choice.preset, not choice.no_preset).config


def check_environment(config: RunConfig) -> None:
    """BadInput unless the algorithm can play in the environment."""
    env = make_env(config.environment, config.env)
    make_algorithm(config, spaces_of(env), torch.device("cpu"))
    env.close()


def coupling_of(config: RunConfig) -> Coupling:
    """How the learner goes with the actors."""
    if config.chosen_backend != "threads":
        return "turns"
    return "free" if getattr(config.algo, "samples_per_insert", None) is None else "ratio"
