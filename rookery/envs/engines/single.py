"""Single environments: an adapter for the old Gym API, preprocessing, and the vector environment
that steps them one after the other."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env, Wrapper, spaces, wrappers
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from rookery_server.single import SingleEnv

from rookery.envs.options import EnvOptions
from rookery.envs.spaces import check_supported, gymnasium_space, located, part_at, space_leaves
from rookery.envs.wrappers.episodes import Reset, Step, no_op
from rookery.errors import RunFailed, missing_extra, require


class GymnasiumAdapter(Env[Any, Any]):
    """Adapter from any object with spaces, `reset` and `step` to Gymnasium's API.

    Four values from `step` are the old API: `done` is a truncation if info contains
    "TimeLimit.truncated". A `reset` that returns only the observation, or takes no seed, also
    works.
    """

    def __init__(self, env: Any):
        self.env = env
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None) if isinstance(env, Env) else None
        self._single = SingleEnv(env)

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self._single.reset(seed, options)

    def step(self, action: Any) -> Any:
        return self._single.step(action)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class SingleLane(Env[Any, Any]):
    """A vector environment of one lane as a single environment."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, vector: VectorEnv[Any, Any, Any]):
        self.vector = vector
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.render_mode = vector.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.vector.reset(seed=seed, options=options)
        self.np_random = self.vector.np_random
        return next(iterate(self.vector.observation_space, obs)), info

    def step(self, action: Any) -> Any:
        obs, *rest, info = self.vector.step(np.asarray(action)[None])
        obs = next(iterate(self.vector.observation_space, obs))
        return obs, *(values.item() for values in rest), info


class FrameSkip(Wrapper[Any, Any, Any, Any]):
    """Repeats each action N times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: Env[Any, Any], frames: int):
        super().__init__(env)
        self.frames = frames

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.frames):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class RandomNoops(Wrapper[Any, Any, Any, Any]):
    """Starts an episode with 1 to N no-ops; if they end it, it is reset."""

    def __init__(self, env: Env[Any, Any], most: int):
        super().__init__(env)
        self.most = most
        self._noop = no_op(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.unwrapped.np_random.integers(1, self.most + 1))):
            obs, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


def preprocess(name: str, env: Env[Any, Any], options: EnvOptions) -> Env[Any, Any]:
    """Return `env` with the preprocessing of single frames and the time limit; colour images stay
    [H, W, C], grey ones become [1, H, W]."""
    if options.sticky:
        env = wrappers.StickyAction(env, options.sticky)
    if options.noops:
        meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", list)()
        require(
            isinstance(env.action_space, spaces.Box) or meanings[:1] == ["NOOP"],
            f'env.noops needs a no-op action, and "{name}" has none: set env.noops=0',
        )
        env = RandomNoops(env, options.noops)
    if (options.frame_skip or 1) > 1:
        env = FrameSkip(env, options.frame_skip or 1)
    space, shape = env.observation_space, env.observation_space.shape or ()
    if options.grey or options.resize:
        require(
            space.dtype == np.uint8 and len(shape) == 3 and shape[-1] == 3,
            f'env.grey and env.resize need uint8 images [H, W, 3], and "{name}" has {space}: '
            "remove them",
        )
    if options.grey:
        env = wrappers.GrayscaleObservation(env, keep_dim=False)
    if options.resize:
        if importlib.util.find_spec("cv2") is None:
            raise missing_extra("env.resize", "image")
        height, width = options.resize
        env = wrappers.ResizeObservation(env, (height, width))
    if options.grey:
        env = wrappers.ReshapeObservation(env, (1, *(env.observation_space.shape or ())))
    return wrappers.TimeLimit(env, options.time_limit) if options.time_limit else env


class ForLoop(VectorEnv[Any, Any, Any]):
    """Like Gymnasium's SyncVectorEnv, but faster, and it checks shapes and dtypes.

    The returned observation is one buffer, overwritten by the next step.
    """

    engine = "for-loop"

    def __init__(self, env_fns: Sequence[Callable[[], Env[Any, Any]]], name: str = "environment"):
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.spec = first.spec
        self.render_mode = first.render_mode
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        check_supported(name, first.observation_space, first.action_space)
        for env in self.envs[1:]:
            require(
                env.observation_space == first.observation_space
                and env.action_space == first.action_space,
                f'envs: copies of "{name}" must have equal spaces, got observation spaces '
                f"{env.observation_space} and {first.observation_space}",
            )
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self._obs: Any = create_empty_array(first.observation_space, self.num_envs, np.zeros)
        paths = [path for path, _ in space_leaves(first.observation_space)]
        leaves = [(path, part_at(self._obs, path)) for path in paths]
        self._leaves = [(path, rows, rows.shape[1:], rows.dtype) for path, rows in leaves]
        self._resetting = [False] * self.num_envs
        self._plain = isinstance(first.action_space, (spaces.Box, spaces.MultiBinary))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Reset:
        """Reset all environments; i is seeded with `seed + i`, or with entry i of a sequence."""
        seeds: Sequence[int | None] = (
            [None if seed is None else seed + i for i in range(self.num_envs)]
            if seed is None or isinstance(seed, (int, np.integer))
            else seed
        )
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            obs, info = env.reset(seed=seeds[i], options=options)
            self._write(i, obs)
            if info:
                infos = self._add_info(infos, info, i)
        self._resetting = [False] * self.num_envs
        return self._obs, infos

    def step(self, actions: Any) -> Step:
        """Reset the environments whose episode ended; step the others."""
        rewards = np.zeros(self.num_envs)
        terminations = np.zeros(self.num_envs, bool)
        truncations = np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        # Box actions iterate by row; for discrete ones `iterate` gives NumPy integers.
        rows = actions if self._plain else iterate(self.action_space, actions)
        for i, action in enumerate(rows):
            env = self.envs[i]
            if self._resetting[i]:
                obs, info = env.reset()
                self._resetting[i] = False
            else:
                obs, reward, terminated, truncated, info = env.step(action)
                rewards[i] = reward
                if terminated or truncated:
                    terminations[i], truncations[i] = terminated, truncated
                    self._resetting[i] = True
            self._write(i, obs)
            if info:
                infos = self._add_info(infos, info, i)
        return self._obs, rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _write(self, i: int, obs: Any) -> None:
        """Copy the observation of environment i into the buffer; raise if it does not fit."""
        for path, rows, shape, dtype in self._leaves:
            try:
                value = np.asarray(part_at(obs, path))
            except (KeyError, IndexError, TypeError):
                key = ".".join(map(str, path))
                raise RunFailed(f'returned an observation without "{key}"') from None
            if value.shape != shape:
                shown = f"{value.shape}{located(path)}"
                raise RunFailed(f"returned an observation of shape {shown}, its space has {shape}")
            if value.dtype != dtype and not np.can_cast(value.dtype, dtype, "same_kind"):
                shown = f"{value.dtype}{located(path)}"
                raise RunFailed(f"returned an observation of dtype {shown}, its space has {dtype}")
            rows[i] = value
