"""The network of an algorithm as a table, and one loss of it with its backward graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from rookery.algorithms.base import Algorithm
from rookery.backends.factory import make_serial
from rookery.backends.serial import Serial
from rookery.config import RunConfig
from rookery.data.steps import Batch
from rookery.data.tree import tree_map
from rookery.diagnostics.layer_table import LayerRow, layer_table, unfused
from rookery.learning.learner import Reducer

LANES = 4
"""Environments that a batch is collected from."""
ROWS = 1024
"""Capacity of a replay memory, enough for every window."""
FROZEN = "requires_grad is False"
UNUSED = "the loss does not depend on it"


@dataclass(frozen=True)
class LossGraph:
    """The layers of a network, and the loss of one batch with its graph."""

    layers: list[LayerRow]
    parameters: dict[str, nn.Parameter]
    total: Tensor
    """The loss."""
    names: Mapping[Node, str]
    """Variables of the algorithm that hold results of nodes of the graph."""
    without_gradient: dict[str, str]
    """Why parameters get no gradient, by name."""

    def to_dict(self) -> dict[str, Any]:
        """Return the table and the parameters without gradient in JSON types."""
        return {
            "parameters": sum(parameter.numel() for parameter in self.parameters.values()),
            "flops_per_step": sum(row.flops for row in self.layers),
            "layers": [asdict(row) for row in self.layers],
            "without_gradient": self.without_gradient,
        }


def loss_graph(config: RunConfig, steps: int) -> LossGraph:
    """Collect a small batch and return the layers and the loss of a run with these settings.

    With a recurrent network the batch has `steps` rows in time; otherwise the loss is the sum of
    the losses of `steps` micro batches.
    """
    backend = make_serial(small_config(config, steps), Reducer(), torch.device("cpu"), 0, None)
    try:
        actor, algorithm = backend.actor, backend.learner.algorithm
        if actor.collection.episodes is not None:
            actor.collection = actor.collection._replace(steps=steps, episodes=None)
        batch = first_batch(backend)
        obs = tree_map(lambda x: x[:1], actor.on_device(actor.observed()))
    finally:
        backend.close()
    state = algorithm.initial_state(1)
    layers = layer_table(algorithm.network, lambda: algorithm.best(obs, torch.zeros(1), state))
    algorithm.before_update(backend.learner.generator)
    parts = list(backend.learner.parts(batch))
    total, names = named_loss(algorithm, batch, parts, config.precision)
    parameters = dict(algorithm.network.named_parameters())
    return LossGraph(layers, parameters, total, names, without_gradient(parameters, total))


def small_config(config: RunConfig, steps: int) -> RunConfig:
    """Return settings with the same network and loss, but as few rows as that needs."""
    algo = config.algo
    small: dict[str, Any] = {
        "epochs": 1,
        "minibatches": 1,
        "batch_size": LANES * steps,
        "capacity": LANES * ROWS,
        "warm_up": 0,
        "samples_per_insert": None,
        "stride": None,
        "unroll": steps,
    }
    if getattr(algo, "rollout_steps", None) is not None:
        small["rollout_steps"] = steps
    if hasattr(algo, "unroll"):
        small |= {name: min(getattr(algo, name), steps) for name in ("burn_in", "n_step")}
    known = {field.name for field in fields(algo)}
    recurrent = config.net.core != "none"
    return replace(
        config,
        backend="serial",
        actors=1,
        learners=1,
        envs=LANES,
        algo=replace(algo, **{name: small[name] for name in known & set(small)}),
        learner=replace(config.learner, micro_batches=1 if recurrent else steps, trace=False),
    )


def first_batch(backend: Serial) -> Batch:
    """Collect until the memory gives a batch."""
    while True:
        segment = backend.actor.collect()
        backend.memory.add(backend.actor.algorithm.prepare(segment))
        for batch in backend.memory.batches():
            return batch


def named_loss(
    algorithm: Algorithm, batch: Batch, parts: list[Batch], precision: str
) -> tuple[Tensor, dict[Node, str]]:
    """Return the loss of a batch, summed over its parts, and names of nodes in its graph."""
    names: dict[Node, str] = {}
    totals = []
    statistics = algorithm.statistics(batch)
    for number, part in enumerate(parts, 1):
        suffix = f" of part {number}" if len(parts) > 1 else ""
        with (
            unfused(),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
            naming_nodes(algorithm, names, suffix),
        ):
            totals.append(algorithm.loss(part, statistics).total)
    return reduce(torch.add, totals), names


@contextmanager
def naming_nodes(algorithm: Algorithm, names: dict[Node, str], suffix: str) -> Iterator[None]:
    """Add to `names` the local variables of the algorithm's functions that hold a tensor with a
    gradient; those of `loss` by their name, others behind the name of their function."""

    def note(frame: FrameType, event: str, arg: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        own = module == type(algorithm).__module__ or module.startswith("rookery.algorithms.")
        if event != "return" or not own:
            return
        function = frame.f_code.co_name
        for variable, value in frame.f_locals.items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                # Functions return before those that call them, whose names replace theirs.
                name = variable if function == "loss" else f"{function}: {variable}"
                names[value.grad_fn] = name + suffix

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def without_gradient(parameters: Mapping[str, nn.Parameter], total: Tensor) -> dict[str, str]:
    """Return why parameters get no gradient from a loss, by name."""
    reasons = {name: FROZEN for name, value in parameters.items() if not value.requires_grad}
    trained = {name: value for name, value in parameters.items() if value.requires_grad}
    grads: tuple[Tensor | None, ...] = (None,) * len(trained)
    if total.requires_grad and trained:
        inputs = list(trained.values())
        grads = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    unused = (name for name, grad in zip(trained, grads, strict=True) if grad is None)
    reasons |= dict.fromkeys(unused, UNUSED)
    return {name: reasons[name] for name in parameters if name in reasons}
