"""make_env: the raw vector environment and the wrappers around it."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.builtin.synthetic import SyntheticVector
from rookery.envs.engines import atari, envpool
from rookery.envs.options import EnvOptions
from rookery.envs.registry import raw_vector, registered, require_next_step
from rookery.envs.spaces import check_supported
from rookery.envs.wrappers.action_masks import LegalActions, tells_legal
from rookery.envs.wrappers.episodes import ClipReward, EpisodeStatistics, Layer, OneLife
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
    """`num_envs` copies of an environment, in NEXT_STEP autoreset mode.

    `env.engine` says what runs them. Arrays returned by `reset` and `step` may be overwritten by
    the next step: whoever keeps one must copy it. `info["episode"]` tells of finished episodes
    (see EpisodeStatistics): their raw scores. Rewards are what a learner gets, clipped and scaled
    if the options say so. With `training=False` they are that too, but statistics are frozen and
    a lost life ends nothing. `threads` bounds the engine's own (0: its choice).
    """
    require(num_envs >= 1, f"envs: num_envs must be >= 1, got {num_envs}")
    require(threads >= 0, f"envs: threads must be >= 0, got {threads}")
    options = implied(name, options or EnvOptions())
    env = raw_vector(name, options, num_envs, threads, render_mode)
    require_next_step(name, env)
    check_supported(name, env.single_observation_space, env.single_action_space)
    env = Guard(env, name, check_bounds=options.check_bounds)
    if options.action_mask:
        env = LegalActions(env)
    env = EpisodeStatistics(env)
    if options.one_life and training:
        require(
            not tells_legal(env),
            "env.one_life plays a no-op where a life was lost, which an action_mask may forbid; use"
            " one of them",
        )
        env = OneLife(env)
    return as_learnt(env, options, frozen=not training)


def as_learnt(
    env: VectorEnv[Any, Any, Any], options: EnvOptions, *, frozen: bool
) -> VectorEnv[Any, Any, Any]:
    """Rewards and observations as an agent learns from them; `frozen` keeps the statistics."""
    if options.clip_reward:
        env = ClipReward(env)
    if options.normalize_reward:
        env = NormalizeReward(env, options.reward_gamma, frozen=frozen)
    if options.normalize_obs:
        env = NormalizeObservation(env, frozen=frozen)
    if (options.frame_stack or 1) > 1:
        env = FrameStack(env, options.frame_stack or 1)
    return env


def learnt_layers(env: VectorEnv[Any, Any, Any]) -> tuple[EpisodeStatistics, list[Layer]]:
    """The environments as they are, and the wrappers that `as_learnt` put around them, innermost
    first."""
    layers: list[Layer] = []
    layer: Any = env
    while not isinstance(layer, EpisodeStatistics):
        layers.insert(0, layer)
        layer = layer.env
    return layer, layers


def pool_of(env: VectorEnv[Any, Any, Any]) -> SyntheticVector | None:
    """The synthetic environments below, if what they hand out are rows of a pool that no wrapper
    changes."""
    while isinstance(env, VectorWrapper):
        if isinstance(env, NormalizeObservation | FrameStack):
            return None
        env = env.env
    return env if isinstance(env, SyntheticVector) and env.pool is not None else None


def implied(name: str, options: EnvOptions) -> EnvOptions:
    """`options` with what an Atari name implies filled in; others keep their Nones.

    EnvPool does the preprocessing of its games itself, but for stacks and clipped rewards.
    """
    if name in registered():
        return options
    if name.startswith(envpool.PREFIX):
        return envpool.resolved(name, options)
    game = atari.parse(name.partition(":")[2] or name)
    return options if game is None else atari.resolved(name, game, options)
