"""Inputs and outputs of an exported policy, and their description in policy.json."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rookery.envs.spaces import space_leaves
from rookery.export.step import Step
from rookery.fields import to_dict

TRACED_BATCH = 3
"""Batch size of the inputs that the step is traced with."""

SPACE_FIELDS = {
    "Box": ("low", "high"),
    "Discrete": ("n", "start"),
    "MultiDiscrete": ("nvec", "start"),
    "MultiBinary": (),
}
"""Fields that describe a space, besides type, dtype and shape."""

Role = Literal["observation", "reward", "first", "state", "action", "judged"]


class Port(NamedTuple):
    """An input or output tensor, [batch, *shape]."""

    name: str
    role: Role
    dtype: str
    """In the notation of NumPy and of the protocol of served environments: "<f4"."""
    shape: tuple[int, ...]
    path: tuple[str | int, ...] | None = None
    """For an observation: its path of keys in the environment's space."""
    next: str | None = None
    """For a state: the name of the output to pass here at the next step."""


class Interface(NamedTuple):
    """All inputs and outputs, in order."""

    inputs: list[Port]
    outputs: list[Port]

    @property
    def states(self) -> list[Port]:
        """Inputs that carry state from step to step."""
        return [port for port in self.inputs if port.role == "state"]


class StepInputs(NamedTuple):
    """Arguments of a Step."""

    obs: tuple[Tensor, ...]
    reward: Tensor
    first: Tensor
    state: tuple[Tensor, ...]


def sample_inputs(step: Step, batch: int) -> StepInputs:
    """Return valid inputs, with observations sampled from the space."""
    found = [leaf for _, leaf in space_leaves(step.space)]
    return StepInputs(
        tuple(torch.as_tensor(np.stack([leaf.sample()] * batch)) for leaf in found),
        torch.zeros(batch, dtype=torch.float64),
        torch.ones(batch, dtype=torch.bool),
        step.initial_state(batch),
    )


@torch.no_grad()
def interface_of(step: Step) -> Interface:
    """Return the names, types and shapes of all inputs and outputs, found by running one step."""
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
    """Return the Port of a tensor."""
    return Port(name, role, tensor.numpy().dtype.str, tuple(tensor.shape[1:]))


def state_names(step: Step) -> list[str]:
    """Return the names of the state tensors."""
    stacked = zip(step.paths, step.leaves, strict=True)
    older = [".".join(["frames", *map(str, path)]) for path, leaf in stacked if leaf.frames > 1]
    carried = len(step.algorithm.initial_state(1))
    return older + [f"memory.{part}" for part in range(carried)]


def described_port(port: Port) -> dict[str, Any]:
    """Return a port as in policy.json."""
    values = port._asdict() | {"shape": ["batch", *port.shape]}
    return {key: value for key, value in values.items() if value is not None}


def described_space(space: Space[Any]) -> dict[str, Any]:
    """Return a space as in the protocol of served environments, with lists for arrays; infinite
    bounds become null in JSON."""
    if isinstance(space, spaces.Dict):
        parts = [described_space(part) for part in space.spaces.values()]
        return {"type": "Dict", "keys": list(space.spaces), "parts": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "parts": [described_space(part) for part in space.spaces]}
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    kind = next(kind for kind in kinds if isinstance(space, kind))
    dtype: Any = space.dtype
    plain = {"type": kind.__name__, "dtype": dtype.str, "shape": list(space.shape or ())}
    return plain | {
        name: number_or_list(getattr(space, name)) for name in SPACE_FIELDS[kind.__name__]
    }


def number_or_list(values: Any) -> Any:
    """Return one number if all values are equal, else nested lists."""
    values = np.asarray(values)
    same = values.size and (values == values.flat[0]).all()
    return values.flat[0].item() if same else values.tolist()


def described_options(options: Any) -> dict[str, dict[str, Any]]:
    """Return the environment's options in two groups: "options", which the user of the policy must
    apply to the environment, and "inside", which the exported policy applies itself."""
    given = to_dict(options)
    training = {"one_life", "reward_gamma", "check_bounds", "remote"}
    inside = {"frame_stack", "clip_reward", "normalize_obs", "normalize_reward"}
    return {
        "options": {k: v for k, v in given.items() if k not in inside | training},
        "inside": {k: v for k, v in given.items() if k in inside},
    }
