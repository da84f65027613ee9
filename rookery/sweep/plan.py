"""Options of `rookery sweep`, the checked SweepSpec made of them, and the resources of trials."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rookery.backends.ray.cluster import cluster_now, connected
from rookery.config import RunConfig, from_values, read_config, resolve, to_values
from rookery.errors import BadInput, missing_extra, nearest, require
from rookery.fields import flag_name, flags_of, nest, require_least
from rookery.sweep.records import ScoreMode, Search, SweepSpec, TrialResources
from rookery.sweep.space import FORMS, Values, check_space, grid_points, split_settings

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
OBJECT_STORE_BYTES = 100 * 2**20
"""Size of a local Ray's object store: trials exchange numbers, not arrays."""
TUNE_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
}
"""Variables that keep Tune from printing, from changing directory and from writing its own logs."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of the command, as opposed to settings of the runs."""

    search: Search = "random"
    """Method that chooses the points: at random, every combination (grid), or by Optuna."""
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
        counts = ("samples", "seeds", "grace_steps", "concurrent")
        require_least(self, 1, counts, lambda name: name.replace("_", "-"))
        require_least(self, 0, ["gpus"])
        require(self.cpus is None or self.cpus > 0, f"cpus must be above 0, got {self.cpus}")
        for name in ("grace_steps", "reduction"):
            idle = getattr(self, name) is not None and not self.asha
            require(not idle, f"{flag_name(name)} has no effect without --asha; remove it")
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


def read_spec(path: str, options: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the command in the file (with algorithm and environment), and the
    settings of the runs by dotted name."""
    given = read_config(path, "spec")
    settings = given.pop("settings", {})
    known = ["algorithm", "environment", *options]
    for name in given:
        if name not in known:
            close = nearest(str(name), [*known, "settings"])
            raise BadInput(
                f"spec: {path}: no such option: {name}.{close} Settings of the runs"
                " belong under settings"
            )
    require(isinstance(settings, Mapping), f"spec: {path}: settings must be a mapping")
    return given, flatten(settings)


def flatten(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{"algo": {"gamma": 1}} as {"algo.gamma": 1}; search spaces and JSON objects stay nested."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        dotted = f"{path}.{name}" if path else str(name)
        group = isinstance(value, Mapping) and not (len(value) == 1 and next(iter(value)) in FORMS)
        if group and dotted not in ("env.kwargs", "net.parts"):
            flat |= flatten(value, dotted)
        else:
            flat[dotted] = value
    return flat


def make_spec(
    algorithm: str, environment: str, settings: Mapping[str, Any], options: SweepOptions
) -> SweepSpec:
    """Return the sweep over `settings`, of which some are search spaces, all of them checked."""
    fixed, space = split_settings({**DEFAULT_SETTINGS, **settings})
    for name, why in NOT_SEARCHED.items():
        require(name not in space, f"{name} cannot be searched: {why}")
    try:
        use_preset = not options.no_preset
        config = resolve(algorithm, environment, nest(fixed), options.preset, use_preset).config
    except BadInput as error:
        for name, value in fixed.items():
            # A value that looks like a space: list the forms of spaces.
            like_a_space = isinstance(value, str) and re.match(r"[a-z_]+:", value)
            if like_a_space and name in str(error):
                raise BadInput(f"{error}. A space is one of {', '.join(FORMS.values())}") from None
        raise
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
    if options.search == "grid":
        require(options.samples is None, "samples: a grid runs all its points; remove --samples")
        samples = len(grid_points(space))
    else:
        sizes = [dimension.grid() for dimension in space.values()]
        points = math.inf if None in sizes else math.prod(len(size or ()) for size in sizes)
        samples = options.samples or int(min(SAMPLES, points))
        few = f"samples: {samples}, but there are {points} points; use --search grid"
        require(samples <= points, few)
    return SweepSpec(
        algorithm=algorithm,
        environment=environment,
        space={name: dimension.written() for name, dimension in space.items()},
        config=values,
        search=options.search,
        samples=samples,
        seeds=options.seeds,
        metric=options.metric,
        mode=options.mode,
        grace_steps=grace if options.asha else None,
        reduction=options.reduction or REDUCTION,
    )


def require_extras(search: Search) -> None:
    """Raise BadInput unless Ray Tune, and Optuna if it searches, are installed."""
    if any(importlib.util.find_spec(name) is None for name in ("ray", "pandas", "pyarrow")):
        raise missing_extra("sweep", "sweep")
    if search == "optuna" and importlib.util.find_spec("optuna") is None:
        raise missing_extra("search=optuna", "sweep")


def connect() -> AbstractContextManager[Any]:
    """Connect to the cluster at RAY_ADDRESS, or start Ray on this machine, while the body runs."""
    for name, value in TUNE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return connected("sweep", 1, object_store_memory=OBJECT_STORE_BYTES)


def trial_resources(spec: SweepSpec, options: SweepOptions) -> TrialResources:
    """Return the resources of one trial; raise BadInput if no machine of the cluster has them."""
    config, there = from_values(spec.config, {}), cluster_now()
    most = there.largest
    actors = 1 if config.actors == "auto" else config.actors
    wanted = spec.seeds * actors * (config.threads or 1)
    cpus = min(float(wanted), most["CPU"]) if options.cpus is None else options.cpus
    for name, asked in (("CPU", cpus), ("GPU", options.gpus)):
        require(
            asked <= most.get(name, 0.0),
            f"{name.lower()}s: a trial asks for {asked:g} {name}s, the largest machine has"
            f" {most.get(name, 0.0):g}",
        )
    gpus = [there.amount("GPU") // options.gpus] if options.gpus else []
    room = [there.amount("CPU") // cpus, *gpus]
    concurrent = options.concurrent or max(1, int(min(room)))
    return TrialResources(cpus=cpus, gpus=options.gpus, concurrent=concurrent)
