"""What a process of a run is made of, and what of it goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm, Spaces
from rookery.backends.progress import Progress
from rookery.config import RunConfig
from rookery.envs import frame_stack_of, normalizer_of, statistics
from rookery.errors import RookeryError, require
from rookery.learning.learner import Learner
from rookery.learning.reduce import Reducer
from rookery.memory.base import Ledger
from rookery.runs import checkpoint


class Parts(NamedTuple):
    """What a process of a run is made of, but for its actors."""

    config: RunConfig
    env: VectorEnv
    """The environments of the first actor."""
    algorithm: Algorithm
    memory: Ledger
    learner: Learner
    reducer: Reducer
    progress: Progress


def spaces_of(env: VectorEnv) -> Spaces:
    """What the environments see and do."""
    return Spaces(
        env.single_observation_space,
        env.single_action_space,
        frame_stack_of(env),
        normalizer_of(env),
    )


def check_agreement(parts: Parts) -> None:
    """Raise unless every rank has the same network and the same modules beside it, to the bit."""
    digests = parts.reducer.gather(parts.learner.digest())
    if len(set(digests)) > 1:
        raise RookeryError(f"the weights of the ranks differ: {digests}")


def learned_tensors(algorithm: Algorithm, learner: Learner) -> dict[str, dict[str, Tensor]]:
    """Networks and optimizer, by the files of a checkpoint."""
    files: dict[str, dict[str, Tensor]] = {
        "weights": dict(algorithm.network.named_parameters()),
        "optimizer": learner.optimizer.state,
    }
    for name, module in algorithm.saved().items():
        files[name] = dict(module.named_parameters())
    return files


def tensors_of(parts: Parts, random: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The files of a checkpoint."""
    files = learned_tensors(parts.algorithm, parts.learner) | {"random": random}
    moments = {
        f"{name}.{key}": torch.as_tensor(value)
        for name, moments in statistics(parts.env).items()
        for key, value in moments.state().items()
    }
    return files | ({"normalizer": moments} if moments else {})


def meta_of(parts: Parts) -> dict[str, Any]:
    """The counters of a checkpoint."""
    return parts.progress.state() | parts.learner.counts()


def restore(parts: Parts, tensors: dict[str, dict[str, Tensor]], meta: dict[str, Any]) -> None:
    """Go on from a checkpoint; one of another network, optimizer or normalisation is refused."""
    load_learned(parts, tensors, meta)
    parts.progress.load(meta)
    load_moments(parts.env, tensors.get("normalizer", {}))


def load_learned(
    parts: Parts, tensors: dict[str, dict[str, Tensor]], counts: Mapping[str, Any]
) -> None:
    """Give the learner saved networks, optimizer and counts."""
    load_weights(parts.algorithm, tensors)
    parts.learner.load_optimizer(tensors["optimizer"])
    parts.learner.load_counts(counts)


def load_weights(algorithm: Algorithm, tensors: dict[str, dict[str, Tensor]]) -> None:
    """Give the algorithm's networks saved weights; those of other networks are refused."""
    load_parameters(algorithm.network, tensors["weights"])
    for name, module in algorithm.saved().items():
        require(name in tensors, f"the checkpoint is of another algorithm: it has no {name}")
        load_parameters(module, tensors[name])


def load_parameters(module: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy saved weights into a module's parameters."""
    parameters = dict(module.named_parameters())
    checkpoint.check_matches(saved, {name: p.shape for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def load_moments(env: VectorEnv, saved: dict[str, Tensor]) -> None:
    """Give the environment's normalisation the statistics of a checkpoint."""
    for name, moments in statistics(env).items():
        keys = [key for key in saved if key.rpartition(".")[0] == name]
        require(
            keys, f"env.normalize_{name.split('.')[0]}: the checkpoint has no statistics for it"
        )
        moments.load({key.rpartition(".")[2]: saved[key].numpy() for key in keys})
