"""Vector wrappers that scale observations and rewards by running statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.spaces import Path, at, dotted, leaves, map_leaves
from rookery.envs.wrappers.episodes import Layer, Reset, Step
from rookery.envs.wrappers.moments import Array, RunningMoments

CLIP = 10.0
EPSILON = 1e-8


class NormalizeObservation(Layer):
    """Observations with mean 0 and deviation 1, clipped to +-10.

    Only float Box leaves are scaled; images and discrete leaves pass. Every observation handed
    out counts once, those that end an episode and those that start one included, those repeated
    for lanes whose server is away not. `frozen` keeps the statistics as they are.
    `info["raw_obs"]` holds the scaled leaves as they were, by their paths.
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
        return self.normalized(obs), {**info, "raw_obs": self.raw(obs)}

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self._counted = ~info["lost"] if "lost" in info else None
        info = {**info, "raw_obs": self.raw(obs)}
        return self.normalized(obs), reward, terminated, truncated, info

    def raw(self, obs: Any) -> dict[Path, Array]:
        """The leaves that are scaled, as they were before."""
        return {path: at(obs, path) for path in self.moments}

    def normalized(self, obs: Any) -> Any:
        """A batch of observations, scaled (and counted, unless frozen)."""
        return map_leaves(self.env.single_observation_space, self._leaf, obs)

    def _leaf(self, path: Path, value: Array) -> Array:
        moments = self.moments.get(path)
        if moments is None:
            return value
        if not self.frozen:
            moments.update(value if self._counted is None else value[self._counted])
        return standardised(value, moments)


class NormalizeReward(Layer):
    """Rewards over the running deviation of the discounted return, clipped to +-10.

    Returns start anew with each episode, and reset rows and rows of lanes that are away reach no
    statistic. `frozen` keeps the statistics as they are. `info["raw_reward"]` holds the rewards as
    they were.
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
        self.resetting = terminated | truncated
        info = {**info, "raw_reward": reward}
        return obs, scaled_reward(reward, self.moments), terminated, truncated, info

    def _count(self, reward: Array, played: Array) -> None:
        self._returns = np.where(played, self.gamma * self._returns + reward, 0.0)
        self.moments.update(self._returns[played])


class Normalizer:
    """Scales raw observations and rewards as the wrappers of an environment do, with the running
    statistics that they keep at the time of the call."""

    def __init__(
        self,
        space: Space[Any],
        obs_moments: dict[Path, RunningMoments],
        reward_moments: RunningMoments | None,
    ):
        self.space = space
        """Observations before they are scaled; stacks of frames are not made yet."""
        self.obs_moments = obs_moments
        self.reward_moments = reward_moments

    def obs(self, rows: Any) -> Any:
        """Raw observations, scaled; any leading axes."""

        def change(path: Path, value: Array) -> Array:
            moments = self.obs_moments.get(path)
            return value if moments is None else standardised(value, moments)

        return map_leaves(self.space, change, rows)

    def reward(self, rows: Array) -> Array:
        """Raw rewards of any shape, scaled."""
        moments = self.reward_moments
        return rows if moments is None else scaled_reward(rows, moments).astype(rows.dtype)

    def raw_leaves(self) -> dict[Path, Space[Any]]:
        """The spaces of the leaves that are scaled, as they are before, by their paths."""
        return {path: at(self.space, path) for path in self.obs_moments}

    def follow(self, shared: Mapping[str, Array]) -> None:
        """Take over the statistics that another process shares, by their names."""
        for name, moments in self.statistics().items():
            moments.follow(shared[name])

    def statistics(self) -> dict[str, RunningMoments]:
        """The running statistics by name, as `statistics` calls them."""
        reward = {} if self.reward_moments is None else {"reward": self.reward_moments}
        return reward | {obs_name(path): moments for path, moments in self.obs_moments.items()}


def normalizer_of(env: VectorEnv[Any, Any, Any]) -> Normalizer | None:
    """What scales as the wrappers of an environment do; None if none of them scales."""
    obs = next((x for x in chain(env) if isinstance(x, NormalizeObservation)), None)
    reward = next((x for x in chain(env) if isinstance(x, NormalizeReward)), None)
    if obs is None and reward is None:
        return None
    inner = env if obs is None else obs.env
    return Normalizer(
        inner.single_observation_space,
        {} if obs is None else obs.moments,
        None if reward is None else reward.moments,
    )


def chain(env: Any) -> Iterator[Any]:
    """An environment and what it wraps, outermost first."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def standardised(value: Array, moments: RunningMoments) -> Array:
    """Observations with mean 0 and deviation 1 by what is known, clipped; float32."""
    return clipped((value - moments.mean) / np.sqrt(moments.var + EPSILON)).astype(np.float32)


def scaled_reward(reward: Array, moments: RunningMoments) -> Array:
    """Rewards over the deviation of returns, clipped."""
    return clipped(reward / np.sqrt(moments.var + EPSILON))


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
    normalizer = normalizer_of(env)
    return {} if normalizer is None else normalizer.statistics()


def obs_name(path: Path) -> str:
    """The name of a leaf's statistics: "obs", or "obs.key"."""
    return ".".join(filter(None, ("obs", dotted(path))))
