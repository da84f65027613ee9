"""EnvPool's environments as Gymnasium vector environments."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.options import EnvOptions
from rookery.envs.wrappers.episodes import Reset, Step
from rookery.errors import BadInput, missing_extra, nearest, require

ENVPOOL_PREFIX = "envpool:"
MAX_SEED = 2**31


class EnvPool(VectorEnv[Any, Any, Any]):
    """EnvPool as a VectorEnv; it resets on the step after an episode's end, as NEXT_STEP requires.

    EnvPool's seed is fixed at construction, so `reset(seed=...)` constructs it again. If an
    episode terminates on the step of its time limit, EnvPool reports only the truncation.
    """

    engine = "envpool"

    def __init__(self, name: str, num_envs: int, threads: int, settings: dict[str, Any]):
        self._name = name
        self._settings = {**settings, "num_envs": num_envs, "num_threads": threads}
        self.num_envs = num_envs
        self._pool = self._make(0)
        self.metadata = {**self._pool.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = settings.get("render_mode")
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        discrete = np.issubdtype(self.single_action_space.dtype, np.integer)
        self._action_dtype = np.int32 if discrete else self.single_action_space.dtype

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Reset all environments, with new random generators if `seed` is given."""
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed % MAX_SEED)
        return self._pool.reset()

    def step(self, actions: Any) -> Step:
        return self._pool.step(np.asarray(actions, self._action_dtype))

    def render(self) -> Any:
        return self._pool.render()

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make(self, seed: int) -> Any:
        import envpool

        # Gymnasium warns of Boxes with float64 bounds, such as EnvPool's.
        with warnings.catch_warnings(action="ignore"):
            made = envpool.make(self._name, env_type="gymnasium", seed=seed, **self._settings)
            # The spaces are built, with warnings, on first access.
            _ = made.observation_space, made.action_space
        return made


def make_pool(
    full_name: str, options: EnvOptions, num_envs: int, threads: int, render_mode: str | None
) -> EnvPool:
    """Return the environment named "envpool:NAME"."""
    config = config_of(full_name)
    chosen = {**settings(full_name, options, config), **options.kwargs}
    for key in ("stack_num", "frame_stack"):  # frames are stacked here, by FrameStack
        require(key not in options.kwargs, f"env.kwargs may not set {key!r}: set env.frame_stack")
    for key in chosen:
        if key not in config:
            raise BadInput(
                f'env.kwargs: "{full_name}" has no setting "{key}".{nearest(key, config)}'
            )
    if render_mode is not None:
        chosen["render_mode"] = render_mode
    return EnvPool(full_name.removeprefix(ENVPOOL_PREFIX), num_envs, threads, chosen)


@functools.lru_cache
def config_of(full_name: str) -> dict[str, Any]:
    """Return EnvPool's settings for "envpool:NAME" and their defaults."""
    if importlib.util.find_spec("envpool") is None:
        raise missing_extra(full_name, "envpool")
    import envpool

    name = full_name.removeprefix(ENVPOOL_PREFIX)
    known = envpool.list_all_envs()
    if name not in known:
        raise BadInput(f'envs: EnvPool has no "{name}".{nearest(name, known)}')
    with warnings.catch_warnings(action="ignore"):
        return dict(envpool.make_spec(name).config._asdict())


def pool_options(full_name: str, options: EnvOptions) -> EnvOptions:
    """Return `options` with None replaced by EnvPool's default stack and Atari's clipping."""
    config = config_of(full_name)
    stack, clip = config.get("stack_num", 1), is_atari(config)
    return options.with_defaults(frame_stack=stack, clip_reward=clip)


def settings(name: str, options: EnvOptions, config: dict[str, Any]) -> dict[str, Any]:
    """Return our options as EnvPool's settings; raise for one that EnvPool does not have."""
    height, width = options.resize or (None, None)
    wanted = {
        "frame_skip": ("frame_skip", options.frame_skip),
        "img_height": ("resize", height),
        "img_width": ("resize", width),
        "gray_scale": ("grey", options.grey),
        "noop_max": ("noops", options.noops),
        "repeat_action_probability": ("sticky", options.sticky),
        "max_episode_steps": ("time_limit", options.time_limit),
    }
    for key, (option, value) in wanted.items():
        require(
            value is None or key in config,
            f'env.{option} cannot be set for "{name}": EnvPool has no such setting',
        )
    chosen = {key: value for key, (_, value) in wanted.items() if value is not None}
    if "stack_num" in config:
        chosen["stack_num"] = 1
    if is_atari(config):
        # EnvPool draws the number from 1 to noop_max; a noop_max of 0 crashes the process.
        require(options.noops != 0, f'env.noops must be >= 1 for "{name}", got 0')
        # As for the ALE: no fire at reset; our wrappers handle lives and clipping.
        chosen |= {"use_fire_reset": False, "episodic_life": False, "reward_clip": False}
    return chosen


def is_atari(config: dict[str, Any]) -> bool:
    """True if EnvPool's settings are those of an Atari game."""
    return "zero_discount_on_life_loss" in config
