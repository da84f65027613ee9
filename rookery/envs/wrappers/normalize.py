"""Vector wrappers that scale observations and rewards by running statistics, and these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.spaces import Array, Path, dotted, map_leaves, part_at, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Reset, Step

CLIP = 10.0
EPSILON = 1e-8


class RunningMoments:
    """Mean and variance of all samples, elementwise over `shape`, in float64.

    Samples fall in two parts: `merged`, equal on every process, and `pending`, those that this
    process added since the last merge. `mean`, `var` and `count` cover both.
    """

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape = shape
        self._size = int(np.prod(shape))
        self._merged = self._empty()
        self._pending = self._empty()
        self._refresh()

    def update(self, batch: Array) -> None:
        """Add a batch of samples [N, *shape]."""
        rows = np.asarray(batch, np.float64).reshape(-1, self._size)
        if not len(rows):
            return
        added = self._empty()
        added[0] = len(rows)
        mean = np.add.reduce(rows, 0, out=added[1 : 1 + self._size])
        mean /= len(rows)
        rows = rows - mean
        np.add.reduce(rows * rows, 0, out=added[1 + self._size :])
        self._pending = _combine(self._pending, added)
        self._refresh()

    def take_pending(self) -> Array:
        """Return the moments of the pending samples as a flat vector, and clear them.

        Pass the vectors of all processes, including this one's, to `merge`.
        """
        pending, self._pending = self._pending, self._empty()
        self._refresh()
        return pending

    def merge(self, pendings: Sequence[Array]) -> None:
        """Add the pending vectors of all processes, in the same order on each."""
        for pending in pendings:
            self._merged = _combine(self._merged, np.asarray(pending, np.float64))
        self._refresh()

    def shared(self) -> Array:
        """Return the merged moments as a flat vector."""
        return self._merged.copy()

    def follow(self, shared: Array) -> None:
        """Replace the merged moments by another process's; pending samples stay."""
        self._merged = np.array(shared, np.float64)
        self._refresh()

    def state(self) -> dict[str, Array]:
        """Return the checkpoint contents: after `load` the statistics continue bitwise equal."""
        return {"merged": self._merged.copy(), "pending": self._pending.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        self._merged = np.array(state["merged"], np.float64).reshape(1 + 2 * self._size)
        self._pending = np.array(state["pending"], np.float64).reshape(1 + 2 * self._size)
        self._refresh()

    def _empty(self) -> Array:
        return np.zeros(1 + 2 * self._size)

    def _refresh(self) -> None:
        total = _combine(self._merged, self._pending)
        self.count = float(total[0])
        self.mean = total[1 : 1 + self._size].reshape(self.shape)
        # The variance of one sample is 0; dividing by it would make the first rewards huge.
        too_few = self.count < 2
        variance = np.ones(self._size) if too_few else total[1 + self._size :] / self.count
        self.var = variance.reshape(self.shape)


def _combine(a: Array, b: Array) -> Array:
    """Return the moments [1 + 2n] (count, means, sums of squared deviations) of two sample sets.

    With n = n_a + n_b and d = mean_b - mean_a (Chan et al. 1979): mean = mean_a + d n_b / n and
    M2 = M2_a + M2_b + d^2 n_a n_b / n.
    """
    if b[0] == 0:
        return a
    if a[0] == 0:
        return b
    size = len(a) // 2
    share = b[0] / (a[0] + b[0])
    delta = b[1 : 1 + size] - a[1 : 1 + size]
    total = a + b
    total[1 : 1 + size] = a[1 : 1 + size] + delta * share
    total[1 + size :] += delta * delta * (a[0] * share)
    return total


class NormalizeObservation(BaseWrapper):
    """Observations with mean 0 and deviation 1, clipped to +-10.

    Only float Box leaves are scaled; images and discrete leaves stay as they are. Every
    observation counts once, including the first and the last of an episode; repeated observations
    of lanes whose server is unreachable do not count. With `frozen` the statistics do not change.
    `info["raw_obs"]` holds the unscaled values of the scaled leaves by their paths.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, frozen: bool = False):
        super().__init__(env)
        self.frozen = frozen
        space = env.single_observation_space
        self.moments: dict[Path, RunningMoments] = {
            path: RunningMoments(leaf.shape or ())
            for path, leaf in space_leaves(space)
            if is_scaled(leaf)
        }
        self._counted: Array | None = None
        """Lanes whose observations count, [B]; None: all."""
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
        """Return the unscaled values of the scaled leaves by their paths."""
        return {path: part_at(obs, path) for path in self.moments}

    def normalized(self, obs: Any) -> Any:
        """Return a batch of observations scaled; unless frozen, update the statistics first."""
        return map_leaves(self.env.single_observation_space, self._leaf, obs)

    def _leaf(self, path: Path, value: Array) -> Array:
        moments = self.moments.get(path)
        if moments is None:
            return value
        if not self.frozen:
            moments.update(value if self._counted is None else value[self._counted])
        return standardised(value, moments)


class NormalizeReward(BaseWrapper):
    """Rewards divided by the running deviation of the discounted return, clipped to +-10.

    The return of a lane starts at 0 in each episode; reset rows and rows of unreachable lanes do
    not count. With `frozen` the statistics do not change. `info["raw_reward"]` holds the unscaled
    rewards.
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
            played = ~(info.get("lost", False) | self.resetting)
            self._returns = np.where(played, self.gamma * self._returns + reward, 0.0)
            self.moments.update(self._returns[played])
        self.resetting = terminated | truncated
        info = {**info, "raw_reward": reward}
        return obs, scaled_reward(reward, self.moments), terminated, truncated, info


@dataclass(eq=False)
class Normalizer:
    """Scales raw observations and rewards with the current statistics of an environment's
    wrappers."""

    space: Space[Any]
    """Observation space before scaling and before frame stacking."""
    obs_moments: dict[Path, RunningMoments]
    reward_moments: RunningMoments | None

    def obs(self, rows: Any) -> Any:
        """Return raw observations scaled; any leading axes."""

        def change(path: Path, value: Array) -> Array:
            moments = self.obs_moments.get(path)
            return value if moments is None else standardised(value, moments)

        return map_leaves(self.space, change, rows)

    def reward(self, rows: Array) -> Array:
        """Return raw rewards of any shape scaled."""
        moments = self.reward_moments
        return rows if moments is None else scaled_reward(rows, moments).astype(rows.dtype)

    def raw_leaves(self) -> dict[Path, Space[Any]]:
        """Return the unscaled spaces of the scaled leaves by their paths."""
        return {path: part_at(self.space, path) for path in self.obs_moments}

    def follow(self, shared: Mapping[str, Array]) -> None:
        """Replace the merged statistics by those of another process, given by name."""
        for name, moments in self.statistics().items():
            moments.follow(shared[name])

    def statistics(self) -> dict[str, RunningMoments]:
        """Return the running statistics by name: "reward", "obs", or "obs.key" for a leaf."""
        reward = {} if self.reward_moments is None else {"reward": self.reward_moments}
        return reward | {dotted(("obs", *path)): own for path, own in self.obs_moments.items()}


def standardised(value: Array, moments: RunningMoments) -> Array:
    """Return (value - mean) / deviation, clipped to +-10, as float32."""
    return clip_in_place((value - moments.mean) / np.sqrt(moments.var + EPSILON)).astype(np.float32)


def scaled_reward(reward: Array, moments: RunningMoments) -> Array:
    """Return rewards divided by the deviation of the returns, clipped to +-10."""
    return clip_in_place(reward / np.sqrt(moments.var + EPSILON))


def clip_in_place(values: Array) -> Array:
    """Clip values to +-10 in place."""
    np.minimum(values, CLIP, out=values)
    return np.maximum(values, -CLIP, out=values)


def is_scaled(leaf: Space[Any]) -> bool:
    """True if a leaf is normalised: a Box of floats."""
    return isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating)


def scaled_space(space: Space[Any]) -> Space[Any]:
    """Return `space` with every normalised leaf as a float32 Box of +-10."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: scaled_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([scaled_space(part) for part in space.spaces])
    return spaces.Box(-CLIP, CLIP, space.shape, np.float32) if is_scaled(space) else space
