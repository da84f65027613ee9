"""Everything that decides a run, resolved from defaults, presets, files and overrides."""

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
from rookery.fields import from_dict, to_dict
from rookery.learning.learner import LearnerConfig
from rookery.networks.build import NetConfig

ATARI = "Atari"
"""The preset of each algorithm that is laid over its defaults for every Atari game."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """What the roles of a run take of a Ray cluster, and what is done when it fails them."""

    actor_cpus: float = 1.0
    """CPUs of each actor."""
    actor_gpus: float = 0.0
    """GPUs of each actor, or a fraction of one."""
    learner_cpus: float | None = None
    """CPUs of each learner; none: one where actors play meanwhile, else those that actors leave
    idle."""
    learner_gpus: float | None = None
    """GPUs of each learner, or a fraction of one; none: one if the device is or may be a GPU."""
    learner_resource: str | None = None
    """Learners go only to nodes that were started with this custom resource."""
    replay_shards: int | None = None
    """Parts a replay memory is cut into, beside the learners; none: one for each learner."""
    learner_restarts: int = 3
    """How often learners or replay shards that were lost are started anew."""
    start_seconds: float = 120.0
    """How long to wait for a place in the cluster, and for what is placed to be ready."""
    status_seconds: float = 30.0
    """Time between tables of who does what; 0: none."""

    def __post_init__(self) -> None:
        for name in ("actor_cpus", "actor_gpus", "learner_cpus", "learner_gpus", "status_seconds"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"ray.{name} must be 0 or more, got {value}")
        for name in ("actor_gpus", "learner_gpus"):
            value = getattr(self, name) or 0
            require(
                value <= 1 or value == int(value),
                f"ray.{name} must be a whole number or a fraction of one, got {value}",
            )
        require(
            self.replay_shards is None or self.replay_shards >= 1,
            f"ray.replay_shards must be at least 1, got {self.replay_shards}",
        )
        require(
            self.learner_restarts >= 0,
            f"ray.learner_restarts must be 0 or more, got {self.learner_restarts}",
        )
        require(
            self.start_seconds > 0, f"ray.start_seconds must be positive, got {self.start_seconds}"
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run, fully described."""

    algorithm: str
    """What learns."""
    environment: str
    """What it learns in."""
    env_steps: int = 1_000_000
    """Agent steps over all actors."""
    seed: int = 1
    """Seeds everything."""
    backend: Literal["auto", "serial", "threads", "ranks", "ray"] = "auto"
    """Where actors and learners run; auto: threads for apex and r2d2 on Atari or with several
    actors, ranks for several actors of other algorithms, serial otherwise."""
    actors: int | Literal["auto"] = "auto"
    """Actors, each with its own environments; auto: one, or on ranks and threads one for every
    core, or on ray as many as the cluster has CPUs for, also when nodes come and go."""
    learners: int = 1
    """Learners on ray: each learns from the experience of its share of the actors, and their
    gradients are summed."""
    envs: int = 8
    """Environments of each actor."""
    device: str = "auto"
    """Where the network lives: auto, cpu, cuda or cuda:N."""
    act_device: str = "cpu"
    """Where actors on threads or ray compute; a list with commas is dealt out in turn."""
    actor_restarts: int = 3
    """How often each actor on threads or ray that failed or was lost is started anew."""
    threads: int | None = None
    """CPU threads of each process; none: its share of the cores for images, one for vectors."""
    compile: bool = False
    """Whether the loss is compiled: slower to start, faster to learn."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the learner's forward pass."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 training episodes reaches this."""
    stop_minutes: float | None = None
    """Stop after this long."""
    eval_steps: int | None = None
    """Agent steps between evaluations on environments of their own; none: never."""
    eval_episodes: int = 10
    """Episodes of such an evaluation."""
    eval_epsilon: float = 0.0
    """Share of random actions in it; the rest are the best ones."""
    warm_up_updates: int = 10
    """Updates before throughput and latency are measured."""
    profile: bool = False
    """Whether to write a profile of some updates, and a picture of where time goes."""
    checkpoint_steps: int | None = None
    """Agent steps between checkpoints; none: a tenth of the run."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay."""
    algo: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The algorithm's own settings."""
    net: NetConfig = field(default_factory=NetConfig)
    """The network."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """The environment's preprocessing."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """How updates are computed."""
    ray: RayConfig = field(default_factory=RayConfig)
    """What is asked of a Ray cluster."""

    def __post_init__(self) -> None:
        for name in (
            *("env_steps", "actors", "learners", "envs", "threads"),
            *("checkpoint_steps", "eval_steps", "eval_episodes"),
        ):
            value = getattr(self, name)
            bad = isinstance(value, int) and value < 1
            require(not bad, f"{name} must be at least 1, got {value}")
        for name in ("seed", "actor_restarts", "warm_up_updates"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be 0 or more, got {value}")
        require(
            0 <= self.eval_epsilon <= 1, f"eval_epsilon must lie in [0, 1], got {self.eval_epsilon}"
        )
        require(
            self.keep_checkpoints >= 1,
            f"keep_checkpoints must be at least 1, got {self.keep_checkpoints}",
        )
        require(
            self.stop_minutes is None or self.stop_minutes > 0,
            f"stop_minutes must be positive, got {self.stop_minutes}",
        )
        require(
            self.backend != "threads" or algorithm_class(self.algorithm).off_policy,
            f"backend=threads: {self.algorithm} learns in turn with its actors; use serial, ranks"
            " or ray",
        )
        require(
            self.backend != "serial" or self.actors in ("auto", 1),
            f"backend=serial has one actor, got actors={self.actors}; use another --backend",
        )
        require(
            self.learners == 1 or self.backend == "ray",
            f"learners={self.learners} needs --backend ray; on ranks every rank learns",
        )
        require(
            self.actors == "auto" or self.learners <= self.actors,
            f"learners={self.learners} is more than one for each of actors={self.actors}",
        )
        require(
            self.ray.replay_shards is None or self.ray.replay_shards >= self.learners,
            f"ray.replay_shards={self.ray.replay_shards} is less than one for each of"
            f" learners={self.learners}",
        )

    @property
    def chosen_backend(self) -> str:
        """The backend, chosen for the algorithm and the environment where none is named."""
        if self.backend != "auto":
            return self.backend
        several = self.actors != "auto" and self.actors > 1
        if algorithm_class(self.algorithm).asynchronous:
            return "threads" if several or plays_atari(self.environment) else "serial"
        return "ranks" if several else "serial"


class Resolved(NamedTuple):
    """A config, and the presets that it was made of, in the order they were laid."""

    config: RunConfig
    presets: tuple[str, ...]


def default_config(algorithm: str, environment: str) -> RunConfig:
    """What a run is without preset or override."""
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
    """Defaults, then the Atari defaults if the environment is an Atari game, then a preset (the
    one named, that in a YAML file, or the environment's own), then `overrides`.

    Without `use_preset` no preset applies but one that is named.
    """
    base = default_config(algorithm, environment)
    layers = atari_defaults(algorithm, environment) if use_preset else {}
    if preset is not None:
        layers |= {preset: named_preset(algorithm, environment, preset)}
    elif use_preset and not layers:
        # A preset for one Atari game must be asked for, so that all games are treated alike.
        own = presets(algorithm).get(environment)
        layers |= {} if own is None else {environment: own}
    return Resolved(from_dict(RunConfig, overrides, laid(base, layers)), tuple(layers))


def preset_base(algorithm: str, environment: str) -> RunConfig:
    """The config that a named preset is laid over."""
    base = default_config(algorithm, environment)
    return laid(base, atari_defaults(algorithm, environment))


def atari_defaults(algorithm: str, environment: str) -> dict[str, dict[str, Any]]:
    """The algorithm's defaults for Atari under their name; none for other environments."""
    known = presets(algorithm)
    atari = plays_atari(environment) and environment not in registered()
    return {ATARI: known[ATARI]} if atari and ATARI in known else {}


def laid(config: RunConfig, layers: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """The config with settings laid over it, layer by layer."""
    for settings in layers.values():
        config = from_dict(RunConfig, settings, config)
    return config


def from_values(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunConfig:
    """The config a run folder or a file describes, `overrides` laid over it."""
    for name in ("algorithm", "environment"):
        require(isinstance(values.get(name), str), f"{name}: the config does not name one")
    base = default_config(values["algorithm"], values["environment"])
    return from_dict(RunConfig, overrides, from_dict(RunConfig, values, base))


def read_config(path: str | Path, what: str = "config") -> dict[str, Any]:
    """The settings in a JSON or YAML file; `what` names it in messages."""
    try:
        text = Path(path).read_text()
        values = json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise BadInput(f"{what}: {path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{what}: {path} cannot be parsed: {str(error).splitlines()[0]}") from None
    require(isinstance(values, dict), f"{what}: {path} holds no settings")
    return values


def presets(algorithm: str) -> dict[str, dict[str, Any]]:
    """Tuned settings of an algorithm, by environment or by another name."""
    file = resources.files("rookery.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text()) or {} if file.is_file() else {}


def named_preset(algorithm: str, environment: str, name: str) -> dict[str, Any]:
    """The settings of a preset that was asked for, by its name or as a YAML file."""
    if name.endswith((".yaml", ".yml")):
        return preset_in(name, environment)
    known = presets(algorithm)
    if name not in known:
        raise BadInput(
            f'preset: {algorithm} has none called "{name}".{nearest(name, known)}'
            f" It has {', '.join(known) or 'none'}."
        )
    return known[name]


def preset_in(path: str, environment: str) -> dict[str, Any]:
    """The settings for an environment in a file of presets."""
    known = read_config(path, "preset")
    require(
        environment in known,
        f"preset: {path} has none for {environment}. It has {', '.join(map(str, known))}.",
    )
    return known[environment] or {}


def to_values(config: RunConfig) -> dict[str, Any]:
    """A JSON-ready dict that `from_values` turns back into an equal config."""
    return to_dict(config)
