"""Options of `rookery sweep`, and the checked SweepSpec made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.config import RunConfig, from_values, resolve, to_values
from rookery.errors import BadInput, require
from rookery.fields import flags_of, nest
from rookery.sweep.records import ScoreMode, Search, SweepSpec
from rookery.sweep.space import (
    FORMS,
    Space,
    Values,
    check_space,
    grid_points,
    split_settings,
    with_hint_at_forms,
)

DEFAULT_SETTINGS = {"backend": "serial", "threads": "1", "keep_checkpoints": "1"}
"""Settings of every run unless given: the trials, not the runs, use the cores in parallel."""
NOT_SEARCHED = {
    "algorithm": "a sweep has one algorithm",
    "environment": "a sweep has one environment",
    "env_steps": "trials are compared at equal steps",
    "seed": "use --seeds",
}
"""Settings that are equal in all trials, and why."""
SAMPLES = 10
REDUCTION = 3.0


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of the command, as opposed to settings of the runs."""

    search: Search = "random"
    """How points are chosen: at random, every combination (grid), or by Optuna."""
    samples: int | None = None
    """Number of trials; none: 10, or all points of a grid. With --resume: the new total."""
    seeds: int = 1
    """Runs of each trial, in parallel; the first has --seed, the next --seed + 1."""
    metric: str = "episode_return_mean"
    """Column of progress.csv to optimize; its last value is the score."""
    mode: ScoreMode = "max"
    """Maximize or minimize the metric."""
    asha: bool = False
    """Stop trials early that are worse than others after the same number of steps (ASHA)."""
    grace_steps: int | None = None
    """With --asha: steps before a trial may be stopped; none: a tenth of --env-steps."""
    reduction: float | None = None
    """With --asha: 1 trial in this many continues, to this many times the steps; none: 3."""
    concurrent: int | None = None
    """Most trials that run at the same time; none: as many as the CPUs and GPUs allow."""
    cpus: float | None = None
    """CPUs per trial; none: one for every thread of its runs."""
    gpus: float = 0.0
    """GPUs per trial; with 0.25, four trials share one."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster; none: RAY_ADDRESS, or else Ray on this machine."""
    sweeps_dir: str = "sweeps"
    """Folder for new sweeps."""
    name: str | None = None
    """Name of the sweep's folder; none: algorithm, environment and time."""
    resume: str | None = None
    """Folder of a sweep to continue."""
    spec: str | None = None
    """YAML file that describes the sweep; options on the command line override it."""
    preset: str | None = None
    """Preset by name, or a YAML file; none: the preset of this algorithm and environment, if any.
    For Atari games it is applied over the preset Atari."""
    no_preset: bool = False
    """Apply no preset, not even that of Atari."""
    plot: bool = True
    """Draw sweep.png."""
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
            require(not idle, f"--{shown} has no effect without --asha; remove it")
        require(
            self.reduction is None or self.reduction > 1,
            f"reduction must be above 1, got {self.reduction}",
        )


def attach_spaces(args: Sequence[str]) -> list[str]:
    """Return the arguments with "--flag log:1:2" as "--flag=log:1:2", also for boolean flags."""
    words: list[str] = []
    for word in args:
        is_space = re.match(rf"({'|'.join(FORMS)}):", word)
        if is_space and words and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def make_spec(
    algorithm: str, environment: str, settings: Mapping[str, Any], options: SweepOptions
) -> SweepSpec:
    """Return the sweep over `settings`, of which some are search spaces, all of them checked."""
    fixed, space = split_settings({**DEFAULT_SETTINGS, **settings})
    for name, why in NOT_SEARCHED.items():
        require(name not in space, f"{name} cannot be searched: {why}")
    config = config_of_all_runs(algorithm, environment, fixed, options)
    require(space, f"sweep: no setting is searched; give one a space: {', '.join(FORMS.values())}")
    values = to_values(config)

    def at(point: Values) -> RunConfig:
        return from_values(values, nest(point))

    space = check_space(space, flags_of(config), at)
    grace = options.grace_steps or max(1, config.env_steps // 10)
    require(
        not options.asha or grace < config.env_steps,
        f"grace-steps: {grace:,} is not below the {config.env_steps:,} steps of a run",
    )
    return SweepSpec(
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


def config_of_all_runs(
    algorithm: str, environment: str, fixed: Mapping[str, Any], options: SweepOptions
) -> RunConfig:
    """Return the config shared by all runs, resolved as by `rookery train`."""
    use_preset = not options.no_preset
    try:
        return resolve(algorithm, environment, nest(fixed), options.preset, use_preset).config
    except BadInput as error:
        for name, value in fixed.items():
            error = with_hint_at_forms(name, value, error)
        raise error from None


def count_samples(space: Space, options: SweepOptions) -> int:
    """Return the number of trials."""
    if options.search == "grid":
        require(options.samples is None, "samples: a grid runs all its points; remove --samples")
        return len(grid_points(space))
    sizes = [dimension.grid() for dimension in space.values()]
    points = math.inf if None in sizes else math.prod(len(size or ()) for size in sizes)
    asked = options.samples or min(SAMPLES, points)
    require(
        asked <= points,
        f"samples: {asked}, but there are {points} points; use --search grid",
    )
    return int(asked)


def first_point(spec: SweepSpec) -> RunConfig:
    """Return the config of one point, to check that the environment can be made."""
    point = {name: dimension.probes()[0] for name, dimension in spec.dimensions.items()}
    return from_values(spec.config, nest(point))
