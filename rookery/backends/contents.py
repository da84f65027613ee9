"""The tensors of a checkpoint: taken from, and loaded into, learners and environments."""

from __future__ import annotations

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm
from rookery.envs import statistics
from rookery.errors import require
from rookery.learning.learner import Learner
from rookery.runs import checkpoint

Tensors = dict[str, dict[str, Tensor]]
"""Tensors by file of the checkpoint and name."""


def learner_tensors(learner: Learner) -> Tensors:
    """Return the weights of the networks and the state of the optimizer."""
    files: Tensors = {
        "weights": dict(learner.algorithm.network.named_parameters()),
        "optimizer": learner.optimizer.state,
    }
    for name, module in learner.algorithm.saved().items():
        files[name] = dict(module.named_parameters())
    return files


def normalizer_tensors(env: VectorEnv) -> Tensors:
    """Return the statistics of the environment's normalisation, if it has any."""
    moments = {
        f"{name}.{key}": torch.as_tensor(value)
        for name, moments in statistics(env).items()
        for key, value in moments.state().items()
    }
    return {"normalizer": moments} if moments else {}


def load_learner(learner: Learner, tensors: Tensors) -> None:
    """Load networks and optimizer state; those of another network or optimizer are refused."""
    load_weights(learner.algorithm, tensors)
    learner.load_optimizer(tensors["optimizer"])


def load_weights(algorithm: Algorithm, tensors: Tensors) -> None:
    """Load the algorithm's networks; weights of other networks are refused."""
    load_parameters(algorithm.network, tensors["weights"])
    for name, module in algorithm.saved().items():
        require(name in tensors, f"the checkpoint is of another algorithm: it has no {name}")
        load_parameters(module, tensors[name])


def load_parameters(module: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy saved weights into a module's parameters."""
    parameters = dict(module.named_parameters())
    checkpoint.check_network_matches(saved, {name: p.shape for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def load_normalizer(env: VectorEnv, tensors: Tensors) -> None:
    """Load the statistics of the environment's normalisation."""
    saved = tensors.get("normalizer", {})
    for name, moments in statistics(env).items():
        keys = [key for key in saved if key.rpartition(".")[0] == name]
        require(
            keys, f"env.normalize_{name.split('.')[0]}: the checkpoint has no statistics for it"
        )
        moments.load({key.rpartition(".")[2]: saved[key].numpy() for key in keys})
