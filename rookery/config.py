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
from rookery.envs import EnvOptions, plays_atari
from rookery.errors import BadInput, nearest, require
from rookery.fields import from_dict, to_dict
from rookery.learning.learner import LearnerConfig
from rookery.networks.build import NetConfig


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
    backend: Literal["auto", "serial", "threads", "ranks"] = "auto"
    """Where actors and learners run; auto: threads for apex and r2d2 on Atari or with several
    actors, ranks for several actors of other algorithms, serial otherwise."""
    actors: int | None = None
    """Actors, each with its own environments; none: one, or on ranks and threads one for every
    core."""
    envs: int = 8
    """Environments of each actor."""
    device: str = "auto"
    """Where the network lives: auto, cpu, cuda or cuda:N."""
    act_device: str = "cpu"
    """Where actors on threads run their networks; a list with commas is dealt out in turn."""
    actor_restarts: int = 3
    """How often an actor on threads that failed is started anew."""
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

    def __post_init__(self) -> None:
        for name in (
            *("env_steps", "actors", "envs", "threads"),
            *("checkpoint_steps", "eval_steps", "eval_episodes"),
        ):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
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
            self.backend != "threads" or algorithm_class(self.algorithm).asynchronous,
            f"backend=threads: {self.algorithm} learns in turn with its actors; use serial or"
            " ranks",
        )
        require(
            self.backend != "serial" or self.actors in (None, 1),
            f"backend=serial has one actor, got actors={self.actors}; use another --backend",
        )

    @property
    def chosen_backend(self) -> str:
        """The backend, chosen for the algorithm and the environment where none is named."""
        if self.backend != "auto":
            return self.backend
        several = (self.actors or 1) > 1
        if algorithm_class(self.algorithm).asynchronous:
            return "threads" if several or plays_atari(self.environment) else "serial"
        return "ranks" if several else "serial"


class Resolved(NamedTuple):
    """A config and the preset it started from, if any."""

    config: RunConfig
    preset: str | None


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
    """Defaults, then the preset (the one named, or the environment's own), then `overrides`."""
    config = default_config(algorithm, environment)
    known = presets(algorithm)
    if preset is not None and preset not in known:
        raise BadInput(
            f'preset: {algorithm} has none called "{preset}".{nearest(preset, known)}'
            f" It has {', '.join(known) or 'none'}."
        )
    if preset is None and use_preset:
        # The presets of Atari games are for large machines, and must be asked for.
        own = environment in known and not plays_atari(environment)
        preset = environment if own else None
    if preset is not None:
        config = from_dict(RunConfig, known[preset], config)
    return Resolved(from_dict(RunConfig, overrides, config), preset)


def from_values(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunConfig:
    """The config a run folder or a file describes, `overrides` laid over it."""
    for name in ("algorithm", "environment"):
        require(isinstance(values.get(name), str), f"{name}: the config does not name one")
    base = default_config(values["algorithm"], values["environment"])
    return from_dict(RunConfig, overrides, from_dict(RunConfig, values, base))


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings in a JSON or YAML file."""
    try:
        text = Path(path).read_text()
        values = json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise BadInput(f"config: {path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"config: {path} cannot be parsed: {str(error).splitlines()[0]}") from None
    require(isinstance(values, dict), f"config: {path} holds no settings")
    return values


def presets(algorithm: str) -> dict[str, dict[str, Any]]:
    """Tuned settings of an algorithm by environment."""
    file = resources.files("rookery.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text()) or {} if file.is_file() else {}


def to_values(config: RunConfig) -> dict[str, Any]:
    """A JSON-ready dict that `from_values` turns back into an equal config."""
    return to_dict(config)
