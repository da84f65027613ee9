"""make_env: the raw vector environment and the wrappers around it."""

from __future__ import annotations

import dataclasses
from typing import Any

from gymnasium.vector import VectorEnv

from rookery.envs import atari, pool
from rookery.envs.episodes import ClipReward, EpisodeStatistics, OneLife
from rookery.envs.guard import Guard
from rookery.envs.normalize import NormalizeObservation, NormalizeReward
from rookery.envs.options import EnvOptions
from rookery.envs.registry import raw_vector, registered, require_next_step
from rookery.envs.spaces import check_supported
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
    """`num_envs` copies of an environment, in NEXT_STEP autoreset mode.

    `env.engine` says what runs them. Arrays returned by `reset` and `step` may be overwritten by
    the next step: whoever keeps one must copy it. `info["episode"]` tells of finished episodes
    (see EpisodeStatistics). With `training=False` statistics are frozen, rewards stay raw, and a
    lost life ends nothing. `threads` bounds the engine's own (0: its choice).
    """
    require(num_envs >= 1, f"envs: num_envs must be >= 1, got {num_envs}")
    require(threads >= 0, f"envs: threads must be >= 0, got {threads}")
    options = implied(name, options or EnvOptions())
    env = raw_vector(name, options, num_envs, threads, render_mode)
    require_next_step(name, env)
    check_supported(name, env.single_observation_space, env.single_action_space)
    env = Guard(env, name, check_bounds=options.check_bounds)
    env = EpisodeStatistics(env)
    if training:
        env = for_learning(env, options)
    if options.normalize_obs:
        env = NormalizeObservation(env, frozen=not training)
    return env


def for_learning(env: VectorEnv[Any, Any, Any], options: EnvOptions) -> VectorEnv[Any, Any, Any]:
    """What only a learner wants to see: its own ends of episodes, and its own rewards."""
    if options.one_life:
        env = OneLife(env)
    if options.clip_reward:
        env = ClipReward(env)
    if options.normalize_reward:
        env = NormalizeReward(env, options.reward_gamma)
    return env


def implied(name: str, options: EnvOptions) -> EnvOptions:
    """`options` with what an Atari name implies filled in; others keep their Nones.

    EnvPool does the preprocessing of its games itself, but for the clipping of rewards.
    """
    if name in registered():
        return options
    if name.startswith(pool.PREFIX):
        atari_game = atari.parse(f"ALE/{name.removeprefix(pool.PREFIX)}") is not None
        clip = atari_game if options.clip_reward is None else options.clip_reward
        return dataclasses.replace(options, clip_reward=clip)
    game = atari.parse(name.partition(":")[2] or name)
    return options if game is None else atari.resolved(name, game, options)
