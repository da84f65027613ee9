"""One step of a trained policy as a torch module, its inputs and outputs, and their description.

The module includes all preprocessing between a raw environment and the network, computed as by
the wrappers of `rookery.envs`: reward clipping and scaling, observation normalization, frame
stacking and recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm
from rookery.data.steps import Decision
from rookery.data.tree import Tree
from rookery.envs.factory import learning_wrappers
from rookery.envs.spaces import space_leaves
from rookery.envs.wrappers.episodes import ClipReward
from rookery.envs.wrappers.normalize import (
    CLIP,
    EPSILON,
    NormalizeObservation,
    NormalizeReward,
    RunningMoments,
)
from rookery.envs.wrappers.observations import Axes, FrameStack, frame_axes
from rookery.errors import BadInput
from rookery.fields import to_dict

TensorList = tuple[Tensor, ...]

WIDENED_DTYPES = (torch.bool, torch.int16, torch.uint16, torch.uint32, torch.uint64)
"""Types that torch or ONNX Runtime cannot mask; stacked frames of them become int64."""
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


class Sign(nn.Module):
    """Clips a reward to its sign."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign()


class Scale(nn.Module):
    """Normalizes and clips values, in double precision as the NumPy wrappers do."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Any, moments: RunningMoments):
        super().__init__()
        deviation = np.sqrt(moments.var + EPSILON)
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.as_tensor(deviation, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.double() - self.mean) / self.deviation).clamp(-CLIP, CLIP).float()


class LeafPreprocessing(nn.Module):
    """Preprocessing of one array of an observation."""

    def __init__(self, leaf: Space[Any]):
        super().__init__()
        self.shape = leaf.shape or ()
        self.dtype = torch_dtype(leaf)
        self.scale: Scale | None = None
        self.frames = 1
        self.axes: Axes = "stay"

    def frame(self, x: Tensor) -> Tensor:
        """Return observations [B, ...] as frames: normalized, with the channel axis moved."""
        if self.scale is not None:
            x = self.scale(x)
        if self.frames > 1 and x.dtype in WIDENED_DTYPES:
            x = x.long()
        if self.axes == "drop first":
            return x[:, 0]
        return x.movedim(1, -1) if self.axes == "move first last" else x

    def older(self, batch: int) -> Tensor:
        """Return the frames before the first of an episode, [B, S - 1, ...]: zeros."""
        frame = self.frame(torch.zeros(batch, *self.shape, dtype=self.dtype))
        return frame.new_zeros(batch, self.frames - 1, *frame.shape[1:])

    def forward(self, x: Tensor, older: Tensor | None) -> Tensor:
        frame = self.frame(x)
        return frame if older is None else torch.cat([older, frame.unsqueeze(1)], 1)


class Step(nn.Module):
    """Maps observations, rewards, episode starts and state to actions, their values, and new state.

    The state has the older frames of every stacked array, then the recurrent state of the
    algorithm. Where `first` marks the start of an episode, state and reward of that environment
    are taken as zeros.
    """

    def __init__(self, algorithm: Algorithm, env: VectorEnv):
        super().__init__()
        self.algorithm = algorithm
        self.network = algorithm.network
        base, layers = learning_wrappers(env)
        self.space = base.single_observation_space
        self.paths = [path for path, _ in space_leaves(self.space)]
        self.leaves = [LeafPreprocessing(leaf) for _, leaf in space_leaves(self.space)]
        self.parts = nn.ModuleList(self.leaves)
        self.rewards = nn.Sequential()
        for layer in layers:
            self.add_wrapper(layer)
        self.action_dtype = torch_dtype(env.single_action_space)

    def add_wrapper(self, layer: Any) -> None:
        """Add the preprocessing of one wrapper of the environment."""
        if isinstance(layer, ClipReward):
            self.rewards.append(Sign())
        elif isinstance(layer, NormalizeReward):
            self.rewards.append(Scale(0.0, layer.moments))
        elif isinstance(layer, NormalizeObservation):
            for path, moments in layer.moments.items():
                self.leaves[self.paths.index(path)].scale = Scale(moments.mean, moments)
        elif isinstance(layer, FrameStack):
            stacked = space_leaves(layer.env.single_observation_space)
            for leaf, (_, space) in zip(self.leaves, stacked, strict=True):
                leaf.frames, leaf.axes = layer.frame_stack, frame_axes(space)
        else:
            raise BadInput(f"export: the wrapper {type(layer).__name__} cannot be exported")

    def initial_state(self, batch: int) -> TensorList:
        """Return the state at the start of an episode."""
        older = [leaf.older(batch) for leaf in self.leaves if leaf.frames > 1]
        return (*older, *self.algorithm.initial_state(batch))

    def forward(
        self, obs: TensorList, reward: Tensor, first: Tensor, state: TensorList
    ) -> TensorList:
        decision, older = self.decide(obs, reward, first, state)
        action = decision.env_action.to(self.action_dtype)
        return (action, *decision.extra.values(), *older, *decision.state)

    def decide(
        self, obs: TensorList, reward: Tensor, first: Tensor, state: TensorList
    ) -> tuple[Decision, list[Tensor]]:
        """Return the algorithm's decision, and the older frames of the next step.

        All state is contiguous: the compiled step requires that of its inputs."""
        reward = zero_where(self.rewards(reward).float(), first)
        memory = [zero_where(part, first) for part in state]
        seen, older = [], []
        for leaf, x in zip(self.leaves, obs, strict=True):
            seen.append(leaf(x, memory.pop(0) if leaf.frames > 1 else None))
            if leaf.frames > 1:
                older.append(seen[-1][:, 1:].contiguous())
        row = nest_like(self.space, iter(seen))
        return self.algorithm.best(row, reward, tuple(memory)), older


def zero_where(x: Tensor, first: Tensor) -> Tensor:
    """Return `x` [B, ...] with zeros where `first` [B] is True."""
    return x.masked_fill(first.reshape(-1, *[1] * (x.dim() - 1)), 0)


def nest_like(space: Space[Any], values: Iterator[Tensor]) -> Tree:
    """Return the next values, one for each leaf of the space, nested like the space."""
    if isinstance(space, spaces.Dict):
        return {key: nest_like(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nest_like(part, values) for part in space.spaces)
    return next(values)


def torch_dtype(space: Space[Any]) -> torch.dtype:
    """Return the dtype of tensors with values of a space."""
    return torch.from_numpy(np.empty(0, space.dtype)).dtype


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


def sample_inputs(step: Step, batch: int) -> tuple[TensorList, Tensor, Tensor, TensorList]:
    """Return valid arguments of a step, with observations sampled from the space."""
    found = [leaf for _, leaf in space_leaves(step.space)]
    return (
        tuple(torch.as_tensor(np.stack([leaf.sample()] * batch)) for leaf in found),
        torch.zeros(batch, dtype=torch.float64),
        torch.ones(batch, dtype=torch.bool),
        step.initial_state(batch),
    )


@torch.no_grad()
def interface_of(step: Step) -> Interface:
    """Return the names, types and shapes of all inputs and outputs, found by running one step."""
    sample = sample_inputs(step, TRACED_BATCH)
    observations, reward, first, state = sample
    decision, _ = step.decide(*sample)
    action, *rest = step(*sample)
    obs = [
        port(".".join(["obs", *map(str, path)]), "observation", x)._replace(path=path)
        for path, x in zip(step.paths, observations, strict=True)
    ]
    stacked = zip(step.paths, step.leaves, strict=True)
    names = [".".join(["frames", *map(str, path)]) for path, leaf in stacked if leaf.frames > 1]
    names += [f"memory.{part}" for part in range(len(state) - len(names))]
    states = [
        port(name, "state", x)._replace(next=f"next.{name}")
        for name, x in zip(names, state, strict=True)
    ]
    judged = [port(name, "judged", x) for name, x in zip(decision.extra, rest, strict=False)]
    return Interface(
        [
            *obs,
            port("reward", "reward", reward),
            port("first", "first", first),
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


def described_port(port: Port) -> dict[str, Any]:
    """Return a port as in policy.json."""
    values = port._asdict() | {"shape": ["batch", *port.shape]}
    return {key: value for key, value in values.items() if value is not None}


def described_space(space: Space[Any]) -> dict[str, Any]:
    """Return a space as in the protocol of served environments, with lists for arrays, or a number
    if all are equal; infinite bounds become null in JSON."""
    if isinstance(space, spaces.Dict):
        parts = [described_space(part) for part in space.spaces.values()]
        return {"type": "Dict", "keys": list(space.spaces), "parts": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "parts": [described_space(part) for part in space.spaces]}
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    kind = next(kind for kind in kinds if isinstance(space, kind))
    dtype: Any = space.dtype
    plain = {"type": kind.__name__, "dtype": dtype.str, "shape": list(space.shape or ())}
    for name in SPACE_FIELDS[kind.__name__]:
        values = np.asarray(getattr(space, name))
        same = values.size and (values == values.flat[0]).all()
        plain[name] = values.flat[0].item() if same else values.tolist()
    return plain


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
