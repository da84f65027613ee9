"""One step of a trained policy as a module: from what the environment says to an action.

All that stands between a raw environment and the network is inside, done as the wrappers of
`rookery.envs` do it: clipped and scaled rewards, normalised observations, stacks of frames,
recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm
from rookery.data.steps import Decision
from rookery.data.tree import Tree
from rookery.envs.factory import learnt_layers
from rookery.envs.spaces import leaves
from rookery.envs.wrappers.episodes import ClipReward
from rookery.envs.wrappers.moments import RunningMoments
from rookery.envs.wrappers.normalize import CLIP, EPSILON, NormalizeObservation, NormalizeReward
from rookery.envs.wrappers.stacking import Axes, FrameStack, frame_axes
from rookery.errors import BadInput

Tensors = tuple[Tensor, ...]

UNCOMMON = (torch.bool, torch.int16, torch.uint16, torch.uint32, torch.uint64)
"""Types that torch or ONNX Runtime cannot select by a mask; as frames they are wide integers."""


class Sign(nn.Module):
    """A reward's sign."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign()


class Scale(nn.Module):
    """Values less a mean, over a deviation, clipped: in double precision, as numpy does it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Any, moments: RunningMoments):
        super().__init__()
        deviation = np.sqrt(moments.var + EPSILON)
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.as_tensor(deviation, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.double() - self.mean) / self.deviation).clamp(-CLIP, CLIP).float()


class Leaf(nn.Module):
    """One array of an observation on its way to the network."""

    def __init__(self, leaf: Space[Any]):
        super().__init__()
        self.shape = leaf.shape or ()
        self.dtype = torch_dtype(leaf)
        self.scale: Scale | None = None
        self.frames = 1
        self.axes: Axes = "stay"

    def frame(self, x: Tensor) -> Tensor:
        """Observations [B, ...] as frames."""
        if self.scale is not None:
            x = self.scale(x)
        if self.frames > 1 and x.dtype in UNCOMMON:
            x = x.long()
        if self.axes == "first goes":
            return x[:, 0]
        return x.movedim(1, -1) if self.axes == "first comes last" else x

    def older(self, batch: int) -> Tensor:
        """The frames before an episode's first, [B, S - 1, ...]: zeros."""
        frame = self.frame(torch.zeros(batch, *self.shape, dtype=self.dtype))
        return frame.new_zeros(batch, self.frames - 1, *frame.shape[1:])

    def forward(self, x: Tensor, older: Tensor | None) -> Tensor:
        frame = self.frame(x)
        return frame if older is None else torch.cat([older, frame.unsqueeze(1)], 1)


class Step(nn.Module):
    """Observations, rewards, beginnings and state to actions, what they were judged by, and state.

    The state is what is remembered between steps: the older frames of every leaf that is stacked,
    then what the algorithm carries on. Where `first` marks that an episode begins, the lane's
    state and reward count as zeros.
    """

    def __init__(self, algorithm: Algorithm, env: VectorEnv):
        super().__init__()
        self.algorithm = algorithm
        self.network = algorithm.network
        base, layers = learnt_layers(env)
        self.space = base.single_observation_space
        self.paths = [path for path, _ in leaves(self.space)]
        self.leaves = [Leaf(leaf) for _, leaf in leaves(self.space)]
        self.parts = nn.ModuleList(self.leaves)
        self.rewards = nn.Sequential()
        for layer in layers:
            self.follow(layer)
        self.action_dtype = torch_dtype(env.single_action_space)

    def follow(self, layer: Any) -> None:
        """Do what a wrapper of the environment does."""
        if isinstance(layer, ClipReward):
            self.rewards.append(Sign())
        elif isinstance(layer, NormalizeReward):
            self.rewards.append(Scale(0.0, layer.moments))
        elif isinstance(layer, NormalizeObservation):
            for path, moments in layer.moments.items():
                self.leaves[self.paths.index(path)].scale = Scale(moments.mean, moments)
        elif isinstance(layer, FrameStack):
            stacked = leaves(layer.env.single_observation_space)
            for leaf, (_, space) in zip(self.leaves, stacked, strict=True):
                leaf.frames, leaf.axes = layer.frame_stack, frame_axes(space)
        else:
            raise BadInput(f"export: what {type(layer).__name__} does cannot be exported")

    def initial_state(self, batch: int) -> Tensors:
        """The state at the start of an episode."""
        older = [leaf.older(batch) for leaf in self.leaves if leaf.frames > 1]
        return (*older, *self.algorithm.initial_state(batch))

    def forward(self, obs: Tensors, reward: Tensor, first: Tensor, state: Tensors) -> Tensors:
        decision, older = self.decide(obs, reward, first, state)
        action = decision.env_action.to(self.action_dtype)
        return (action, *decision.extra.values(), *older, *decision.state)

    def decide(
        self, obs: Tensors, reward: Tensor, first: Tensor, state: Tensors
    ) -> tuple[Decision, list[Tensor]]:
        """The algorithm's decision, and the frames that are older than the next ones.

        All state is contiguous, as the compiled step takes its inputs to be."""
        reward = cleared(self.rewards(reward).float(), first)
        memory = [cleared(part, first) for part in state]
        seen, older = [], []
        for leaf, x in zip(self.leaves, obs, strict=True):
            seen.append(leaf(x, memory.pop(0) if leaf.frames > 1 else None))
            if leaf.frames > 1:
                older.append(seen[-1][:, 1:].contiguous())
        row = nested(self.space, iter(seen))
        return self.algorithm.best(row, reward, tuple(memory)), older


def cleared(x: Tensor, first: Tensor) -> Tensor:
    """`x` [B, ...] with zeros in the lanes marked in `first` [B]."""
    return x.masked_fill(first.reshape(-1, *[1] * (x.dim() - 1)), 0)


def nested(space: Space[Any], values: Iterator[Tensor]) -> Tree:
    """The next values, one a leaf, nested like the space."""
    if isinstance(space, spaces.Dict):
        return {key: nested(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nested(part, values) for part in space.spaces)
    return next(values)


def torch_dtype(space: Space[Any]) -> torch.dtype:
    """The type of tensors that hold values of a space."""
    return torch.from_numpy(np.empty(0, space.dtype)).dtype
