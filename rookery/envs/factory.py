"""make_env: the raw vector environment and the wrappers around it."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.builtin.synthetic import SyntheticVector
from rookery.envs.engines import atari, envpool
from rookery.envs.options import EnvOptions
from rookery.envs.registry import raw_vector, registered, require_next_step
from rookery.envs.spaces import check_supported
from rookery.envs.wrappers.action_masks import ActionMaskWrapper, has_action_mask
from rookery.envs.wrappers.episodes import BaseWrapper, ClipReward, EpisodeStatistics, OneLife
from rookery.envs.wrappers.guard import Guard
from rookery.envs.wrappers.normalize import NormalizeObservation, NormalizeReward
from rookery.envs.wrappers.stacking import FrameStack
from rookery.errors import require


def make_env(
    name: str,
    options: EnvOptions | None = None,
    *,
    num_envs: int = 1,
    training: bool = True,
    threads: int = 0,
    render_mode: str | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Return a vector environment of `num_envs` copies, in NEXT_STEP autoreset mode.

    `env.engine` names the engine that steps them. Arrays returned by `reset` and `step` may be
    overwritten by the next step: copy what you keep. `info["episode"]` holds raw scores of
    finished episodes (see EpisodeStatistics); rewards are clipped and scaled as the options say.
    With `training=False` running statistics are frozen and a lost life does not end an episode.
    `threads` is the number of the engine's own threads (0: the engine decides).
    """
    require(num_envs >= 1, f"envs: num_envs must be >= 1, got {num_envs}")
    require(threads >= 0, f"envs: threads must be >= 0, got {threads}")
    options = resolve_options(name, options or EnvOptions())
    env = raw_vector(name, options, num_envs, threads, render_mode)
    require_next_step(name, env)
    check_supported(name, env.single_observation_space, env.single_action_space)
    env = Guard(env, name, check_bounds=options.check_bounds)
    if options.action_mask:
        env = ActionMaskWrapper(env)
    env = EpisodeStatistics(env)
    if options.one_life and training:
        require(
            not has_action_mask(env),
            'env.one_life plays a no-op after a lost life, which the "action_mask" of observations'
            " may forbid; set env.one_life=false",
        )
        env = OneLife(env)
    return wrap_for_learning(env, options, frozen=not training)


def wrap_for_learning(
    env: VectorEnv[Any, Any, Any], options: EnvOptions, *, frozen: bool
) -> VectorEnv[Any, Any, Any]:
    """Return `env` with the wrappers that clip, scale and stack for the learner; `frozen` ones
    do not update their statistics."""
    if options.clip_reward:
        env = ClipReward(env)
    if options.normalize_reward:
        env = NormalizeReward(env, options.reward_gamma, frozen=frozen)
    if options.normalize_obs:
        env = NormalizeObservation(env, frozen=frozen)
    if (options.frame_stack or 1) > 1:
        env = FrameStack(env, options.frame_stack or 1)
    return env


def learning_wrappers(env: VectorEnv[Any, Any, Any]) -> tuple[EpisodeStatistics, list[BaseWrapper]]:
    """Return the environment inside `wrap_for_learning`'s wrappers, and these, innermost first."""
    wrappers: list[BaseWrapper] = []
    inner: Any = env
    while not isinstance(inner, EpisodeStatistics):
        wrappers.insert(0, inner)
        inner = inner.env
    return inner, wrappers


def pool_of(env: VectorEnv[Any, Any, Any]) -> SyntheticVector | None:
    """Return the wrapped synthetic environment if its observations are rows of a pool that no
    wrapper changes, else None."""
    while isinstance(env, VectorWrapper):
        if isinstance(env, NormalizeObservation | FrameStack):
            return None
        env = env.env
    return env if isinstance(env, SyntheticVector) and env.pool is not None else None


def resolve_options(name: str, options: EnvOptions) -> EnvOptions:
    """Return `options` with Atari's defaults filled in if `name` is an Atari game.

    EnvPool preprocesses its games itself, except for frame stacks and reward clipping.
    """
    if name in registered():
        return options
    if name.startswith(envpool.ENVPOOL_PREFIX):
        return envpool.pool_options(name, options)
    game = atari.parse_game(name.partition(":")[2] or name)
    return options if game is None else atari.atari_options(name, game, options)
