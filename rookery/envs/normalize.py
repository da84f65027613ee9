"""Vector wrappers that scale observations and rewards by running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.episodes import Layer, Reset, Step
from rookery.envs.moments import Array, RunningMoments
from rookery.envs.spaces import Path, dotted, leaves, map_leaves

CLIP = 10.0
EPSILON = 1e-8


class NormalizeObservation(Layer):
    """Observations with mean 0 and deviation 1, clipped to +-10.

    Only float Box leaves are scaled; images and discrete leaves pass. Every observation handed
    out counts once, those that end an episode and those that start one included, those repeated
    for lanes whose server is away not. `frozen` keeps the statistics as they are.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, frozen: bool = False):
        super().__init__(env)
        self.frozen = frozen
        space = env.single_observation_space
        self.moments: dict[Path, RunningMoments] = {
            path: RunningMoments(leaf.shape or ()) for path, leaf in leaves(space) if scaled(leaf)
        }
        self._counted: Array | None = None
        """Lanes whose observations are new, [B]; None: all."""
        self.single_observation_space = scaled_space(space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self._counted = None
        return self.normalized(obs), info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self._counted = ~info["lost"] if "lost" in info else None
        return self.normalized(obs), reward, terminated, truncated, info

    def normalized(self, obs: Any) -> Any:
        """A batch of observations, scaled (and counted, unless frozen)."""
        return map_leaves(self.env.single_observation_space, self._leaf, obs)

    def _leaf(self, path: Path, value: Array) -> Array:
        moments = self.moments.get(path)
        if moments is None:
            return value
        if not self.frozen:
            moments.update(value if self._counted is None else value[self._counted])
        scaled_value = (value - moments.mean) / np.sqrt(moments.var + EPSILON)
        return clipped(scaled_value).astype(np.float32)


class NormalizeReward(Layer):
    """Rewards over the running deviation of the discounted return, clipped to +-10.

    Returns start anew with each episode, and reset rows and rows of lanes that are away reach no
    statistic. `frozen` keeps the statistics as they are.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], gamma: float, *, frozen: bool = False):
        super().__init__(env)
        self.gamma = gamma
        self.frozen = frozen
        self.moments = RunningMoments()
        self._returns = np.zeros(env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._returns = np.zeros(self.num_envs)
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if not self.frozen:
            self._count(reward, ~(info.get("lost", False) | self.resetting))
        scaled_reward = reward / np.sqrt(self.moments.var + EPSILON)
        self.resetting = terminated | truncated
        return obs, clipped(scaled_reward), terminated, truncated, info

    def _count(self, reward: Array, played: Array) -> None:
        self._returns = np.where(played, self.gamma * self._returns + reward, 0.0)
        self.moments.update(self._returns[played])


def clipped(values: Array) -> Array:
    """Values within +-10, in place."""
    np.minimum(values, CLIP, out=values)
    return np.maximum(values, -CLIP, out=values)


def scaled(leaf: Space[Any]) -> bool:
    """Whether a leaf is normalised: a Box of floats."""
    return isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating)


def scaled_space(space: Space[Any]) -> Space[Any]:
    """`space` with every normalised leaf as a float32 Box of +-10."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: scaled_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([scaled_space(part) for part in space.spaces])
    return spaces.Box(-CLIP, CLIP, space.shape, np.float32) if scaled(space) else space


def statistics(env: VectorEnv[Any, Any, Any]) -> dict[str, RunningMoments]:
    """All running statistics in a chain of wrappers: "reward", "obs", or "obs.key" for a leaf."""
    found: dict[str, RunningMoments] = {}
    layer: Any = env
    while layer is not None:
        if isinstance(layer, NormalizeObservation):
            for path, moments in layer.moments.items():
                found[".".join(filter(None, ("obs", dotted(path))))] = moments
        elif isinstance(layer, NormalizeReward):
            found["reward"] = layer.moments
        layer = getattr(layer, "env", None)
    return found
