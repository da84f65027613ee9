"""make_env: the raw vector environment and the wrappers around it, and what these hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.vector import VectorEnv, VectorWrapper

from rookery.envs.builtin.synthetic import SyntheticVector
from rookery.envs.engines import atari, envpool
from rookery.envs.options import EnvOptions
from rookery.envs.registry import atari_game, is_served, raw_vector, registered
from rookery.envs.spaces import check_supported
from rookery.envs.wrappers.episodes import (
    BaseWrapper,
    ClipReward,
    EpisodeStatistics,
    Guard,
    OneLife,
    wrapper_chain,
)
from rookery.envs.wrappers.normalize import (
    NormalizeObservation,
    Normalizer,
    NormalizeReward,
    RunningMoments,
)
from rookery.envs.wrappers.observations import ActionMaskWrapper, FrameStack, has_action_mask
from rookery.errors import BadInput, require

CLIENT_OPTIONS = (
    *("one_life", "clip_reward", "normalize_obs", "normalize_reward", "reward_gamma"),
    *("check_bounds", "remote"),
)
"""Options that a server does not apply: rewards are sent raw, and statistics belong to a run."""


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
    if options.clip_reward:
        env = ClipReward(env)
    if options.normalize_reward:
        env = NormalizeReward(env, options.reward_gamma, frozen=not training)
    if options.normalize_obs:
        env = NormalizeObservation(env, frozen=not training)
    if (options.frame_stack or 1) > 1:
        env = FrameStack(env, options.frame_stack or 1)
    return env


def server_factory(name: str, options: EnvOptions, threads: int) -> Callable[[int, bool], Any]:
    """Return a function (number of environments, render) -> vector environment with raw rewards,
    for `rookery serve`."""
    require(not is_served(name), f'serve: "{name}" is already served')
    defaults = EnvOptions()
    for option in CLIENT_OPTIONS:
        if getattr(options, option) != getattr(defaults, option):
            raise BadInput(f"env.{option} must be set on the client, not on the server")
    resolved = resolve_options(name, options)

    def make(number: int, render: bool) -> Any:
        env = raw_vector(name, resolved, number, threads, "rgb_array" if render else None)
        if resolved.action_mask:
            env = ActionMaskWrapper(env)
        stack = resolved.frame_stack or 1
        return FrameStack(env, stack) if stack > 1 else env

    return make


def resolve_options(name: str, options: EnvOptions) -> EnvOptions:
    """Return `options` with Atari's defaults filled in if `name` is an Atari game.

    EnvPool preprocesses its games itself, except for frame stacks and reward clipping.
    """
    if name in registered():
        return options
    if name.startswith(envpool.ENVPOOL_PREFIX):
        return envpool.pool_options(name, options)
    game = atari_game(name)
    return options if game is None else atari.atari_options(name, game, options)


def learning_wrappers(env: VectorEnv[Any, Any, Any]) -> tuple[EpisodeStatistics, list[BaseWrapper]]:
    """Return the environment with whole episodes and raw rewards, and the wrappers around it that
    change these for the learner, innermost first."""
    wrappers: list[BaseWrapper] = []
    inner: Any = env
    while not isinstance(inner, EpisodeStatistics):
        wrappers.insert(0, inner)
        inner = inner.env
    return inner, wrappers


def frame_stack_of(env: VectorEnv[Any, Any, Any]) -> int:
    """Return the number of frames in one observation; 1 if no wrapper stacks."""
    return next((x.frame_stack for x in wrapper_chain(env) if isinstance(x, FrameStack)), 1)


def normalizer_of(env: VectorEnv[Any, Any, Any]) -> Normalizer | None:
    """Return a Normalizer over the statistics of an environment's wrappers; None if it has none."""
    obs = next((x for x in wrapper_chain(env) if isinstance(x, NormalizeObservation)), None)
    reward = next((x for x in wrapper_chain(env) if isinstance(x, NormalizeReward)), None)
    if obs is None and reward is None:
        return None
    inner = env if obs is None else obs.env
    return Normalizer(
        inner.single_observation_space,
        {} if obs is None else obs.moments,
        None if reward is None else reward.moments,
    )


def statistics(env: VectorEnv[Any, Any, Any]) -> dict[str, RunningMoments]:
    """Return the running statistics of all wrappers by name (see `Normalizer.statistics`)."""
    normalizer = normalizer_of(env)
    return {} if normalizer is None else normalizer.statistics()


def pool_of(env: VectorEnv[Any, Any, Any]) -> SyntheticVector | None:
    """Return the wrapped synthetic environment if its observations are rows of a pool that no
    wrapper changes, else None."""
    while isinstance(env, VectorWrapper):
        if isinstance(env, NormalizeObservation | FrameStack):
            return None
        env = env.env
    return env if isinstance(env, SyntheticVector) and env.pool is not None else None
