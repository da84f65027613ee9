"""RunConfig: every setting of a run, resolved from defaults, presets, files and overrides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from rookery.algorithms import algorithm_class
from rookery.algorithms.base import OptimizerConfig
from rookery.envs import EnvOptions, plays_atari, registered
from rookery.errors import BadInput, nearest, require
from rookery.fields import from_dict, require_least, to_dict
from rookery.learning.learner import LearnerConfig
from rookery.networks.build import NetConfig

ATARI = "Atari"
"""Name of the preset that an algorithm applies to every Atari game."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Resources of a run's actors, learners and replay shards on Ray, and its reaction to
    failures."""

    actor_cpus: float = 1.0
    """CPUs of each actor."""
    actor_gpus: float = 0.0
    """GPUs of each actor, or a fraction of one."""
    learner_cpus: float | None = None
    """CPUs of each learner; none: one where actors run at the same time, else those that actors
    leave idle."""
    learner_gpus: float | None = None
    """GPUs of each learner, or a fraction of one; none: one if the device is or may be a GPU."""
    learner_resource: str | None = None
    """Place learners only on nodes that offer this custom Ray resource."""
    replay_shards: int | None = None
    """Number of shards of the replay memory; none: one for each learner."""
    learner_restarts: int = 3
    """Most restarts of the learners, which are replaced together, and of each replay shard."""
    start_seconds: float = 120.0
    """Longest wait for the cluster to place a worker, and for that worker to be ready."""
    status_seconds: float = 30.0
    """Seconds between status tables of all workers; 0: no tables."""

    def __post_init__(self) -> None:
        amounts = ("actor_cpus", "actor_gpus", "learner_cpus", "learner_gpus")
        require_least(self, 0, (*amounts, "status_seconds", "learner_restarts"), "ray.{}".format)
        require_least(self, 1, ["replay_shards"], "ray.{}".format)
        for name in ("actor_gpus", "learner_gpus"):
            value = getattr(self, name) or 0
            require(
                value <= 1 or value == int(value),
                f"ray.{name} must be a whole number or a fraction of one, got {value}",
            )
        seconds = self.start_seconds
        require(seconds > 0, f"ray.start_seconds must be positive, got {seconds}")


TrapLevel = Literal["off", "warn", "stop"]


@dataclass(frozen=True, kw_only=True)
class TrapsConfig:
    """Levels of the traps, which look for faults while the run goes on; none: as `level` says."""

    level: TrapLevel = "warn"
    """Of all traps: ignore faults, log a warning, or stop the run and save the batch that shows the
    fault."""
    equal_seeds: TrapLevel | None = None
    """Workers play the same episodes."""
    reward_never_seen: TrapLevel | None = None
    """All episodes have the same return."""
    obs_constant: TrapLevel | None = None
    """The observations never change."""
    obs_unscaled: TrapLevel | None = None
    """The network's inputs are large."""
    zero_gradient: TrapLevel | None = None
    """The gradient is zero."""
    layer_without_gradient: TrapLevel | None = None
    """A layer gets no gradient."""
    frozen_weights: TrapLevel | None = None
    """A layer's weights stay the same."""
    target_never_moves: TrapLevel | None = None
    """The target network stays the same."""
    stale_actors: TrapLevel | None = None
    """Actors play with old weights."""
    dead_units: TrapLevel | None = None
    """Most units of a layer are dormant."""
    saturated_units: TrapLevel | None = None
    """Most units of a layer are at a limit of their activation function."""
    learning_rate_high: TrapLevel | None = None
    """Updates change the policy or the weights by too much."""
    exploding_gradient: TrapLevel | None = None
    """The gradient grows by orders of magnitude."""
    entropy_collapse: TrapLevel | None = None
    """The policy becomes deterministic before it is better than random."""
    constant_actions: TrapLevel | None = None
    """One action is played always."""
    values_off_scale: TrapLevel | None = None
    """Value targets exceed every possible sum of rewards."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run."""

    algorithm: str
    """Name of the algorithm."""
    environment: str
    """Name of the environment."""
    env_steps: int = 1_000_000
    """Agent steps over all actors."""
    seed: int = 1
    """Seed of networks, environments, exploration and sampling."""
    backend: Literal["auto", "serial", "threads", "ranks", "ray"] = "auto"
    """Backend of actors and learners; auto: threads for apex and r2d2 on Atari or with several
    actors, ranks for several actors of other algorithms, serial otherwise."""
    actors: int | Literal["auto"] = "auto"
    """Actors, each with its own environments; auto: one on serial, one per core on ranks and
    threads, on ray as many as the cluster has CPUs for, also when nodes join or leave."""
    learners: int = 1
    """Learners on ray: each learns from the experience of its share of the actors, and their
    gradients are summed."""
    envs: int = 8
    """Environments of each actor."""
    device: str = "auto"
    """Device of the network: auto, cpu, cuda or cuda:N."""
    act_device: str = "cpu"
    """Device of actors on threads or ray; a comma-separated list is assigned round-robin."""
    actor_restarts: int = 3
    """Most restarts of each failed or lost actor on threads or ray."""
    threads: int | None = None
    """CPU threads of each process; none: its share of the cores for images, one for vectors."""
    compile: bool = False
    """Compile the loss with torch.compile: slower to start, faster to learn."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the learner's forward pass."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 training episodes reaches this."""
    stop_minutes: float | None = None
    """Stop after this many minutes."""
    eval_steps: int | None = None
    """Agent steps between evaluations on separate environments; none: never."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    eval_epsilon: float = 0.0
    """Share of random actions in evaluations; the other actions are greedy."""
    inspect_every: int = 0
    """Agent steps between pictures of what the network gets, in the run's folder `plots`; 0:
    never."""
    random_baseline: bool = True
    """Report the return of a random policy beside the agent's; it is measured for at most a second
    where it is not cached."""
    diagnose: int | None = None
    """Updates between measurements of layers, policy, values and data; none: one for each report;
    0: never."""
    histograms: int = 0
    """Updates between histograms of weights, gradients and activations for TensorBoard, at most one
    for each report; 0: never."""
    watch_layers: tuple[str, ...] = ()
    """Layers whose outputs and gradients callbacks get, beside those that they name themselves."""
    warm_up_updates: int = 10
    """Updates before throughput and latency are measured."""
    profile: bool = False
    """Write a profile of some updates, and a plot of where time goes."""
    checkpoint_steps: int | None = None
    """Agent steps between checkpoints; none: a tenth of the run."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep."""
    # Frozen, so that all configs can share one default of each.
    algo: OptimizerConfig = field(default=OptimizerConfig())
    """Settings of the algorithm."""
    net: NetConfig = field(default=NetConfig())
    """Settings of the network."""
    env: EnvOptions = field(default=EnvOptions())
    """Preprocessing of the environment."""
    learner: LearnerConfig = field(default=LearnerConfig())
    """Settings of the updates."""
    traps: TrapsConfig = field(default=TrapsConfig())
    """Faults that are looked for while the run goes on."""
    ray: RayConfig = field(default=RayConfig())
    """Resources and restarts on a Ray cluster."""

    def __post_init__(self) -> None:
        counts = ("env_steps", "actors", "learners", "envs", "threads", "keep_checkpoints")
        require_least(self, 1, (*counts, "checkpoint_steps", "eval_steps", "eval_episodes"))
        amounts = ("seed", "actor_restarts", "warm_up_updates", "diagnose", "histograms")
        require_least(self, 0, (*amounts, "inspect_every"))
        require(
            0 <= self.eval_epsilon <= 1, f"eval_epsilon must lie in [0, 1], got {self.eval_epsilon}"
        )
        require(
            self.stop_minutes is None or self.stop_minutes > 0,
            f"stop_minutes must be positive, got {self.stop_minutes}",
        )
        require(
            self.backend != "threads" or algorithm_class(self.algorithm).off_policy,
            f"backend=threads: {self.algorithm} is on-policy and cannot learn while its actors"
            " play; use serial, ranks or ray",
        )
        require(
            self.backend != "serial" or self.actors in ("auto", 1),
            f"backend=serial runs one actor, got actors={self.actors}; use another --backend",
        )
        require(
            self.learners == 1 or self.backend == "ray",
            f"learners={self.learners} needs --backend ray; on ranks every rank is a learner",
        )
        require(
            self.actors == "auto" or self.learners <= self.actors,
            f"learners={self.learners} must be at most actors={self.actors}",
        )
        require(
            self.ray.replay_shards is None or self.ray.replay_shards >= self.learners,
            f"ray.replay_shards={self.ray.replay_shards} must be at least learners={self.learners}",
        )

    @property
    def chosen_backend(self) -> str:
        """The backend; with backend=auto, one that suits algorithm, environment and actors."""
        if self.backend != "auto":
            return self.backend
        several = self.actors != "auto" and self.actors > 1
        if algorithm_class(self.algorithm).asynchronous:
            return "threads" if several or plays_atari(self.environment) else "serial"
        return "ranks" if several else "serial"


class Resolved(NamedTuple):
    """A config and the names of the presets in it, in the order they were applied."""

    config: RunConfig
    presets: tuple[str, ...]


def default_config(algorithm: str, environment: str) -> RunConfig:
    """Return the config of a run without presets and overrides."""
    kind = algorithm_class(algorithm)
    return RunConfig(
        algorithm=algorithm, environment=environment, algo=kind.Config(), net=kind.default_net
    )


def resolve(
    algorithm: str,
    environment: str,
    overrides: Mapping[str, Any],
    preset: str | None = None,
    use_preset: bool = True,
) -> Resolved:
    """Return the config of a run, each of these overriding the ones before: the defaults, the
    Atari preset if the environment is an Atari game, a preset (by name, in a YAML file, or the
    environment's own), `overrides`.

    Without `use_preset` only a preset named in `preset` applies.
    """
    base = default_config(algorithm, environment)
    layers = atari_defaults(algorithm, environment) if use_preset else {}
    if preset is not None:
        layers |= {preset: named_preset(algorithm, environment, preset)}
    elif use_preset and not layers:
        # The preset of a single Atari game applies only by name, so that all games share settings.
        own = presets(algorithm).get(environment)
        layers |= {} if own is None else {environment: own}
    return Resolved(from_dict(RunConfig, overrides, apply_layers(base, layers)), tuple(layers))


def preset_base(algorithm: str, environment: str) -> RunConfig:
    """Return the config that a named preset changes: defaults and the Atari preset."""
    base = default_config(algorithm, environment)
    return apply_layers(base, atari_defaults(algorithm, environment))


def atari_defaults(algorithm: str, environment: str) -> dict[str, dict[str, Any]]:
    """Return {"Atari": settings} for an Atari game if the algorithm has that preset, else {}."""
    known = presets(algorithm)
    atari = plays_atari(environment) and environment not in registered()
    return {ATARI: known[ATARI]} if atari and ATARI in known else {}


def apply_layers(config: RunConfig, layers: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return `config` with the settings of every layer applied in order."""
    for settings in layers.values():
        config = from_dict(RunConfig, settings, config)
    return config


def from_values(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunConfig:
    """Return the config in a run's config.json or in another file, changed by `overrides`."""
    for name in ("algorithm", "environment"):
        require(isinstance(values.get(name), str), f"{name}: missing from the config; add it")
    base = default_config(values["algorithm"], values["environment"])
    return from_dict(RunConfig, overrides, from_dict(RunConfig, values, base))


def read_config(path: str | Path, what: str = "config") -> dict[str, Any]:
    """Return the settings in a JSON or YAML file; messages begin with `what`."""
    try:
        text = Path(path).read_text()
        values = json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise BadInput(f"{what}: {path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{what}: {path} cannot be parsed: {str(error).splitlines()[0]}") from None
    require(isinstance(values, dict), f"{what}: {path} contains no settings")
    return values


def presets(algorithm: str) -> dict[str, dict[str, Any]]:
    """Return an algorithm's tuned settings by environment or preset name."""
    file = resources.files("rookery.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text()) or {} if file.is_file() else {}


def named_preset(algorithm: str, environment: str, name: str) -> dict[str, Any]:
    """Return the settings of a preset, given by its name or as a YAML file."""
    is_file = name.endswith((".yaml", ".yml"))
    known = read_config(name, "preset") if is_file else presets(algorithm)
    available = f"Available: {', '.join(map(str, known)) or 'none'}."
    if is_file:
        missing = f"preset: {name} has no preset for {environment}."
        require(environment in known, f"{missing} {available}")
        return known[environment] or {}
    close = nearest(name, known)
    require(name in known, f'preset: {algorithm} has no preset "{name}".{close} {available}')
    return known[name]


def to_values(config: RunConfig) -> dict[str, Any]:
    """Return a JSON-ready dict that `from_values` turns back into an equal config."""
    return to_dict(config)
