"""Record the newest observations of the first environment, from the engine and to the network."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv

from rookery.envs.spaces import Array, Path, part_at, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Guard, Reset, Step, wrapper_chain

RECORDED_ROWS = 300
RECORDED_BYTES = 48_000_000
"""Most bytes that a NewestRows keeps: fewer rows of large observations."""


class ObservationRecord(NamedTuple):
    """The newest rows of one environment, oldest first."""

    raw_space: Space[Any]
    raw: dict[Path, Array]
    """Leaves of the observations as the engine returned them, [T, ...]."""
    seen_space: Space[Any]
    seen: dict[Path, Array]
    """Leaves of the same observations as the network gets them, [T, ...]."""


class NewestRows(BaseWrapper):
    """Keeps copies of the newest observations of lane 0."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        leaves = list(space_leaves(env.single_observation_space))
        self.paths = [path for path, _ in leaves]
        sizes = [np.empty(leaf.shape or (), leaf.dtype).nbytes for _, leaf in leaves]
        count = max(1, min(RECORDED_ROWS, RECORDED_BYTES // max(1, sum(sizes))))
        self.rows: collections.deque[list[Array]] = collections.deque(maxlen=count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self.keep(obs)
        return obs, info

    def step(self, actions: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self.keep(obs)
        return obs, reward, terminated, truncated, info

    def keep(self, obs: Any) -> None:
        """Add the observation of lane 0."""
        self.rows.append([np.array(part_at(obs, path)[0]) for path in self.paths])

    def newest(self, count: int) -> dict[Path, Array]:
        """Return the newest `count` rows by leaf."""
        rows = list(self.rows)[-count:]
        return {path: np.array([row[i] for row in rows]) for i, path in enumerate(self.paths)}


def record_observations(env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Return an environment of `make_env` that records what it returns: see `observations_of`."""
    guard = next(layer for layer in wrapper_chain(env) if isinstance(layer, Guard))
    guard.env = NewestRows(guard.env)
    return NewestRows(env)


def observations_of(env: VectorEnv[Any, Any, Any]) -> ObservationRecord | None:
    """Return what an environment has recorded; None if it does not record, or has not begun."""
    layers = [layer for layer in wrapper_chain(env) if isinstance(layer, NewestRows)]
    if not layers or not layers[0].rows:
        return None
    seen, raw = layers
    # Both keep a row a step; where raw observations are larger, fewer of them are kept.
    count = min(len(seen.rows), len(raw.rows))
    return ObservationRecord(
        raw.single_observation_space,
        raw.newest(count),
        seen.single_observation_space,
        seen.newest(count),
    )
