"""From options and settings to a sweep, checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.config import RunConfig, from_values, resolve, to_values
from rookery.errors import BadInput, require
from rookery.fields import flags_of, nest
from rookery.sweep.records import Mode, Search, Spec
from rookery.sweep.space import FORMS, Space, Values, check, grid_points, hint_at_forms, split

UNLESS_GIVEN = {"backend": "serial", "threads": "1", "keep_checkpoints": "1"}
"""Settings of every run: trials are what goes on side by side."""
NOT_SEARCHED = {
    "algorithm": "a sweep has one",
    "environment": "a sweep has one",
    "env_steps": "trials are compared at equal steps",
    "seed": "use --seeds",
}
"""Settings that every trial has alike, and why."""
SAMPLES = 10
REDUCTION = 3.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command that are no settings of the runs."""

    search: Search = "random"
    """How points are chosen: drawn evenly, every combination, or by Optuna from earlier trials."""
    samples: int | None = None
    """Trials; none: 10, or on a grid all its points. With --resume: those of the whole sweep."""
    seeds: int = 1
    """Runs of each trial, side by side; the first has --seed, the next one more."""
    metric: str = "episode_return_mean"
    """Column of progress.csv to be made large or small; its last value counts."""
    mode: Mode = "max"
    """Whether more of it is better, or less."""
    asha: bool = False
    """Stop trials early that are worse than others at as many steps."""
    grace_steps: int | None = None
    """With --asha: steps before a trial may be stopped; none: a tenth of --env-steps."""
    reduction: float | None = None
    """With --asha: one trial in so many goes on to so many times the steps; none: 3."""
    concurrent: int | None = None
    """Trials at once; none: as many as the CPUs and GPUs allow."""
    cpus: float | None = None
    """CPUs of a trial; none: one for every thread of its runs."""
    gpus: float = 0.0
    """GPUs of a trial; 0.25 lets four share one."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster; none: RAY_ADDRESS, or else Ray on this machine."""
    sweeps_dir: str = "sweeps"
    """Folder that new sweeps go to."""
    name: str | None = None
    """Name of the sweep's folder; none: algorithm, environment and time."""
    resume: str | None = None
    """Folder of a sweep to go on with."""
    spec: str | None = None
    """YAML file that describes the sweep; options given beside it count more."""
    preset: str | None = None
    """Tuned settings by name, or a YAML file of them; none: those for this algorithm and
    environment, if any. For Atari games they are laid over the preset Atari."""
    no_preset: bool = False
    """Start from the defaults even where a preset applies by itself, Atari's included."""
    plot: bool = True
    """Whether sweep.png is drawn."""
    json: bool = False
    """Print the results as one JSON object on standard output."""

    def __post_init__(self) -> None:
        for name in ("samples", "seeds", "grace_steps", "concurrent"):
            value = getattr(self, name)
            shown = name.replace("_", "-")
            require(value is None or value >= 1, f"{shown} must be at least 1, got {value}")
        require(self.cpus is None or self.cpus > 0, f"cpus must be above 0, got {self.cpus}")
        require(self.gpus >= 0, f"gpus must be 0 or more, got {self.gpus}")
        for name in ("grace_steps", "reduction"):
            idle = getattr(self, name) is not None and not self.asha
            shown = name.replace("_", "-")
            require(not idle, f"--{shown} says nothing without --asha; leave it out")
        require(
            self.reduction is None or self.reduction > 1,
            f"reduction must be above 1, got {self.reduction}",
        )


def joined(args: Sequence[str]) -> list[str]:
    """The words with a space joined to its flag, which may be one that needs no value."""
    words: list[str] = []
    for word in args:
        is_space = re.match(rf"({'|'.join(FORMS)}):", word)
        if is_space and words and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def make_spec(
    algorithm: str, environment: str, settings: Mapping[str, Any], options: Options
) -> Spec:
    """The sweep of these settings, some of which are spaces."""
    fixed, space = split({**UNLESS_GIVEN, **settings})
    for name, why in NOT_SEARCHED.items():
        require(name not in space, f"{name} cannot be searched: {why}")
    config = settle(algorithm, environment, fixed, options)
    require(space, f"sweep: no setting is searched; give one of {', '.join(FORMS.values())}")
    values = to_values(config)

    def at(point: Values) -> RunConfig:
        return from_values(values, nest(point))

    space = check(space, flags_of(config), at)
    grace = options.grace_steps or max(1, config.env_steps // 10)
    require(
        not options.asha or grace < config.env_steps,
        f"grace-steps: {grace:,} is not below the {config.env_steps:,} steps of a run",
    )
    return Spec(
        algorithm=algorithm,
        environment=environment,
        space={name: dimension.written() for name, dimension in space.items()},
        config=values,
        search=options.search,
        samples=count_samples(space, options),
        seeds=options.seeds,
        metric=options.metric,
        mode=options.mode,
        grace_steps=grace if options.asha else None,
        reduction=options.reduction or REDUCTION,
    )


def settle(
    algorithm: str, environment: str, fixed: Mapping[str, Any], options: Options
) -> RunConfig:
    """The config of all runs, as `rookery train` makes it."""
    use_preset = not options.no_preset
    try:
        return resolve(algorithm, environment, nest(fixed), options.preset, use_preset).config
    except BadInput as error:
        for name, value in fixed.items():
            error = hint_at_forms(name, value, error)
        raise error from None


def count_samples(space: Space, options: Options) -> int:
    """How many trials there are."""
    if options.search == "grid":
        require(options.samples is None, "samples: a grid has all its points; leave it out")
        return len(grid_points(space))
    sizes = [dimension.grid() for dimension in space.values()]
    points = math.inf if None in sizes else math.prod(len(size or ()) for size in sizes)
    asked = options.samples or min(SAMPLES, points)
    require(asked <= points, f"samples: {asked} of {points} points; use --search grid for all")
    return int(asked)


def first_point(spec: Spec) -> RunConfig:
    """The config of a point of the space, to see whether it can run at all."""
    point = {name: dimension.probes()[0] for name, dimension in spec.dimensions.items()}
    return from_values(spec.config, nest(point))
