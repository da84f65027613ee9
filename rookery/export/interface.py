"""What goes into an exported policy and what comes out, in words that any language reads."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rookery.envs.spaces import leaves
from rookery.export.step import Step
from rookery.fields import to_dict

TRACED_BATCH = 3
"""Lanes of the inputs that the step is traced with."""

FACTS = {
    "Box": ("low", "high"),
    "Discrete": ("n", "start"),
    "MultiDiscrete": ("nvec", "start"),
    "MultiBinary": (),
}
"""What is told of each kind of space beside type and shape."""

Role = Literal["observation", "reward", "first", "state", "action", "judged"]


class Port(NamedTuple):
    """An input or output tensor, [batch, *shape]."""

    name: str
    role: Role
    dtype: str
    """As numpy and the protocol of served environments write it: "<f4"."""
    shape: tuple[int, ...]
    path: tuple[str | int, ...] | None = None
    """Of an observation: the keys that lead to it in the environment's space."""
    next: str | None = None
    """Of a state: the output that is this input of the next step."""


class Interface(NamedTuple):
    """All inputs and outputs, in order."""

    inputs: list[Port]
    outputs: list[Port]

    @property
    def states(self) -> list[Port]:
        """The inputs that are state."""
        return [port for port in self.inputs if port.role == "state"]


class Inputs(NamedTuple):
    """The arguments of a step."""

    obs: tuple[Tensor, ...]
    reward: Tensor
    first: Tensor
    state: tuple[Tensor, ...]


def sample_inputs(step: Step, batch: int) -> Inputs:
    """Inputs of the right shapes and types, with observations out of the space."""
    found = [leaf for _, leaf in leaves(step.space)]
    return Inputs(
        tuple(torch.as_tensor(np.stack([leaf.sample()] * batch)) for leaf in found),
        torch.zeros(batch, dtype=torch.float64),
        torch.ones(batch, dtype=torch.bool),
        step.initial_state(batch),
    )


@torch.no_grad()
def interface_of(step: Step) -> Interface:
    """Names, types and shapes, taken from a step that is made."""
    sample = sample_inputs(step, TRACED_BATCH)
    decision, _ = step.decide(*sample)
    action, *rest = step(*sample)
    obs = [
        port(".".join(["obs", *map(str, path)]), "observation", x)._replace(path=path)
        for path, x in zip(step.paths, sample.obs, strict=True)
    ]
    states = [
        port(name, "state", x)._replace(next=f"next.{name}")
        for name, x in zip(state_names(step), sample.state, strict=True)
    ]
    judged = [port(name, "judged", x) for name, x in zip(decision.extra, rest, strict=False)]
    return Interface(
        [
            *obs,
            port("reward", "reward", sample.reward),
            port("first", "first", sample.first),
            *states,
        ],
        [
            port("action", "action", action),
            *judged,
            *(state._replace(name=f"next.{state.name}", next=None) for state in states),
        ],
    )


def port(name: str, role: Role, tensor: Tensor) -> Port:
    """The port that a tensor goes through."""
    return Port(name, role, tensor.numpy().dtype.str, tuple(tensor.shape[1:]))


def state_names(step: Step) -> list[str]:
    """What the parts of the state are called."""
    stacked = zip(step.paths, step.leaves, strict=True)
    older = [".".join(["frames", *map(str, path)]) for path, leaf in stacked if leaf.frames > 1]
    carried = len(step.algorithm.initial_state(1))
    return older + [f"memory.{part}" for part in range(carried)]


def described_port(port: Port) -> dict[str, Any]:
    """A port for `policy.json`."""
    values = port._asdict() | {"shape": ["batch", *port.shape]}
    return {key: value for key, value in values.items() if value is not None}


def described_space(space: Space[Any]) -> dict[str, Any]:
    """A space as the protocol of served environments writes it, with lists for its arrays; in JSON
    a bound that is infinite is null."""
    if isinstance(space, spaces.Dict):
        parts = [described_space(part) for part in space.spaces.values()]
        return {"type": "Dict", "keys": list(space.spaces), "parts": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "parts": [described_space(part) for part in space.spaces]}
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    kind = next(kind for kind in kinds if isinstance(space, kind))
    dtype: Any = space.dtype
    plain = {"type": kind.__name__, "dtype": dtype.str, "shape": list(space.shape or ())}
    return plain | {name: number_or_list(getattr(space, name)) for name in FACTS[kind.__name__]}


def number_or_list(values: Any) -> Any:
    """One number where all are the same, else nested lists."""
    values = np.asarray(values)
    same = values.size and (values == values.flat[0]).all()
    return values.flat[0].item() if same else values.tolist()


def described_options(options: Any) -> dict[str, dict[str, Any]]:
    """The environment's options: those that whoever plays has to see to, and those that the
    policy sees to itself."""
    given = to_dict(options)
    training = {"one_life", "reward_gamma", "check_bounds", "remote"}
    inside = {"frame_stack", "clip_reward", "normalize_obs", "normalize_reward"}
    return {
        "options": {k: v for k, v in given.items() if k not in inside | training},
        "inside": {k: v for k, v in given.items() if k in inside},
    }
