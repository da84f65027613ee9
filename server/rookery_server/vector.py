"""A vector environment that steps its environments one after the other."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Tuple

import numpy as np

from rookery_server.spaces import Leaf, at, describe, leaves, nested

Batch = Tuple[Any, np.ndarray, np.ndarray, np.ndarray, List[dict]]


class SequentialVector:
    """Copies of a `SingleEnv`, stepped one after the other, in NEXT_STEP autoreset mode.

    The interface is that of Gymnasium's vector environments, except that infos are a list with the
    info of each environment. Observations are overwritten by the next step.
    """

    def __init__(self, make: Callable[[], Any], count: int):
        self.envs: list[Any] = []
        try:
            for _ in range(count):
                self.envs.append(make())
            self._allocate(count)
        except BaseException:
            self.close()
            raise

    def _allocate(self, count: int) -> None:
        self.num_envs = count
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        seen = describe(self.single_observation_space, [])
        self._leaves = leaves(seen)
        self._rows = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._obs = nested(seen, iter(self._rows))
        self._action = describe(self.single_action_space, [])
        self._action_leaves = leaves(self._action)
        self._ended = [False] * count

    def reset(self, seed: int | None = None) -> tuple[Any, list[dict]]:
        """Reset all environments; number i is seeded with `seed + i`."""
        infos = []
        for i, env in enumerate(self.envs):
            obs, info = env.reset(None if seed is None else seed + i)
            self._write(i, obs)
            infos.append(info)
        self._ended = [False] * self.num_envs
        return self._obs, infos

    def step(self, actions: Any) -> Batch:
        """Reset the environments whose episode has ended, and step the others."""
        infos = []
        rewards = np.zeros(self.num_envs)
        terminations = np.zeros(self.num_envs, bool)
        truncations = np.zeros(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            if self._ended[i]:
                obs, info = env.reset()
                self._ended[i] = False
            else:
                action = self._action_of(i, actions)
                obs, rewards[i], terminations[i], truncations[i], info = env.step(action)
                self._ended[i] = bool(terminations[i] or truncations[i])
            self._write(i, obs)
            infos.append(info)
        return self._obs, rewards, terminations, truncations, infos

    def render(self) -> Iterator[Any]:
        """Yield an image of each environment, rendered on demand."""
        return (env.render() for env in self.envs)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _action_of(self, i: int, actions: Any) -> Any:
        values = (at(actions, leaf.path)[i] for leaf in self._action_leaves)
        return nested(self._action, values)

    def _write(self, i: int, obs: Any) -> None:
        for leaf, rows in zip(self._leaves, self._rows):
            value = np.asarray(at(obs, leaf.path))
            check_observation(leaf, value)
            rows[i] = value


def check_observation(leaf: Leaf, value: np.ndarray) -> None:
    """Raise if an observation does not have the shape and the kind of dtype of its space."""
    where = f' at "{".".join(map(str, leaf.path))}"' if leaf.path else ""
    if value.shape != leaf.shape:
        raise ValueError(
            f"observation of shape {value.shape}{where}, but its space has shape {leaf.shape}"
        )
    if value.dtype != leaf.dtype and not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
        raise ValueError(
            f"observation of dtype {value.dtype}{where}, but its space has dtype {leaf.dtype}"
        )
