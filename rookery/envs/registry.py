"""Environment names: registration, lookup, and construction of the raw vector environment."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium import Env
from gymnasium.vector import AutoresetMode, VectorEnv

from rookery.envs.engines import atari, envpool
from rookery.envs.engines.for_loop import ForLoop
from rookery.envs.engines.single import GymnasiumAdapter, preprocess, wraps_single
from rookery.envs.options import EnvOptions
from rookery.envs.remote.naming import is_served
from rookery.errors import BadInput, missing_extra, nearest, require

EnvFn = Callable[..., Any]
PROVIDED = {"tetris_gymnasium/Tetris": "tetris_gymnasium.envs"}
"""Modules that register a Gymnasium id, imported when that id is asked for."""
EXTRAS = {"box2d": "box2d", "tetris": "tetris"}
"""Extra to install, by a word in the environment's entry point."""
_registered: dict[str, EnvFn] = {}


def register_env(name: str, fn: EnvFn, *, replace: bool = False) -> None:
    """Register `fn`, so that `make_env(name)` calls `fn(**env.kwargs)`.

    `fn` returns a Gymnasium environment, one with the old four-value API, or a VectorEnv; a
    function that makes a VectorEnv may take `num_envs`.
    """
    require(callable(fn), f'envs: register_env("{name}", fn) needs a callable fn, got {fn!r}')
    if name in _registered and not replace:
        raise BadInput(f'envs: "{name}" is already registered; pass replace=True to replace it')
    _registered[name] = fn


def registered() -> dict[str, EnvFn]:
    """Return the functions given to `register_env` by name."""
    return dict(_registered)


def raw_vector(
    name: str, options: EnvOptions, num_envs: int, threads: int, render_mode: str | None
) -> Any:
    """Return the vector environment of a name without this library's wrappers."""
    if name in _registered:
        return from_function(name, _registered[name], options, num_envs, render_mode)
    if is_served(name):
        from rookery.envs.remote.vector import make_served

        return make_served(name, options, num_envs, render_mode)
    if name.startswith(envpool.ENVPOOL_PREFIX):
        return envpool.make_pool(name, options, num_envs, threads, render_mode)
    if ":" in name:
        found = from_module(name)
        if not isinstance(found, str):
            return from_function(name, found, options, num_envs, render_mode)
        name = found
    if name in PROVIDED:
        try:
            importlib.import_module(PROVIDED[name])
        except ImportError as error:
            raise missing_dependency(name, PROVIDED[name], error) from error
    game = None if name in gymnasium.registry and not is_ale(name) else atari.parse_game(name)
    if game is not None:
        if render_mode is not None:
            return ForLoop(
                [lambda: atari.single_atari(game, options, render_mode)] * num_envs, name
            )
        return atari.make_atari(game, options, num_envs, threads)
    if name not in gymnasium.registry:
        raise unknown(name)
    return from_gymnasium(name, options, num_envs, render_mode)


def is_ale(name: str) -> bool:
    """True if a Gymnasium id was registered by the ALE."""
    return "ale_py" in str(gymnasium.registry[name].entry_point)


def from_module(name: str) -> Any:
    """Return what "package.module:EnvId" names: a Gymnasium id, a registered function, or an
    environment class.

    Security: the name may come from the config.json of an untrusted run, so no other attribute of
    the module is ever called.
    """
    module_name, _, env_id = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        # An installed command does not search the working directory as `python` does.
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        text = " ".join(str(error).split())
        raise BadInput(
            f'envs: "{name}" needs the module "{module_name}", which cannot be imported: '
            f"{type(error).__name__}: {text}"
        ) from error
    if env_id in gymnasium.registry or atari.parse_game(env_id):
        return env_id
    if env_id in _registered:
        return _registered[env_id]
    found = getattr(module, env_id, None)
    if not callable(found):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise BadInput(
            f'envs: "{module_name}" neither registers nor defines "{env_id}".'
            f"{nearest(env_id, [*gymnasium.registry, *public])}"
        )
    require(
        is_environment_class(found),
        f'envs: "{name}" is neither a registered id nor a subclass of gymnasium.Env,'
        " gymnasium.vector.VectorEnv or gym.Env: make it one, or let its module register a function"
        f' with rookery.register_env("{env_id}", ...)',
    )
    return found


def is_environment_class(found: Any) -> bool:
    """True if `found` is an environment class of Gymnasium or of old Gym, which need not be
    installed."""
    if not isinstance(found, type):
        return False
    gym_bases = (base for base in found.__mro__ if base.__module__.partition(".")[0] == "gym")
    return issubclass(found, (Env, VectorEnv)) or any(base.__name__ == "Env" for base in gym_bases)


def from_function(
    name: str, fn: EnvFn, options: EnvOptions, num_envs: int, render_mode: str | None
) -> Any:
    """Return the VectorEnv that `fn` makes, or a for-loop over `num_envs` single environments."""
    kwargs = dict(options.kwargs)
    explicit = _parameters(fn)
    if "num_envs" in explicit:
        kwargs["num_envs"] = num_envs
    if render_mode is not None and "render_mode" in explicit:
        kwargs["render_mode"] = render_mode
    first = fn(**kwargs)
    if isinstance(first, VectorEnv):
        return checked_vector(name, first, options, num_envs)
    made = [first]

    def one() -> Env[Any, Any]:
        env = made.pop() if made else fn(**kwargs)
        return with_time_limit(preprocess(name, to_gymnasium(name, env), options), options)

    return ForLoop([one] * num_envs, name)


def checked_vector(
    name: str, env: VectorEnv[Any, Any, Any], options: EnvOptions, num_envs: int
) -> VectorEnv[Any, Any, Any]:
    """Return a user's VectorEnv; raise if it has another size or an option cannot be applied."""
    if env.num_envs != num_envs:
        raise BadInput(
            f'envs: "{name}" made a VectorEnv of {env.num_envs} environments instead of '
            f"{num_envs}: let its function take num_envs"
        )
    if wraps_single(options) or options.time_limit:
        raise BadInput(
            f'envs: "{name}" makes a VectorEnv, to which env.frame_skip, resize, grey, noops, '
            "sticky and time_limit cannot be applied: do that inside its function"
        )
    return env


def to_gymnasium(name: str, env: Any) -> Env[Any, Any]:
    """Return `env` in Gymnasium's API; results of `gymnasium.make` already have it."""
    for attribute in ("observation_space", "action_space", "reset", "step"):
        if not hasattr(env, attribute):
            raise BadInput(f'envs: "{name}" made {env!r}, which has no "{attribute}"')
    return env if isinstance(env, gymnasium.Wrapper) else GymnasiumAdapter(env)


def with_time_limit(env: Env[Any, Any], options: EnvOptions) -> Env[Any, Any]:
    """Return `env` truncated after env.time_limit agent steps, if that is set."""
    return gymnasium.wrappers.TimeLimit(env, options.time_limit) if options.time_limit else env


def from_gymnasium(name: str, options: EnvOptions, num_envs: int, render_mode: str | None) -> Any:
    """Return the native vector environment of a Gymnasium id if it has one, else a for-loop."""
    spec = gymnasium.registry[name]
    kwargs = dict(options.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        if spec.vector_entry_point and not wraps_single(options) and render_mode is None:
            if options.time_limit:
                kwargs["max_episode_steps"] = options.time_limit
            env = gymnasium.make_vec(
                name, num_envs, vectorization_mode="vector_entry_point", **kwargs
            )
            env.engine = "gymnasium-native"  # type: ignore[attr-defined]
            return env

        def one() -> Env[Any, Any]:
            # Our time limit counts agent steps, so it is applied outside of the frame skip.
            limit = {"max_episode_steps": -1} if options.time_limit else {}
            single = gymnasium.make(name, disable_env_checker=True, **limit, **kwargs)
            return with_time_limit(preprocess(name, single, options), options)

        return ForLoop([one] * num_envs, name)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        entry = str(gymnasium.registry[name].entry_point)
        raise missing_dependency(name, entry, error) from error
    except TypeError as error:
        raise BadInput(f'env.kwargs: "{name}" does not accept them: {error}') from error


def missing_dependency(name: str, entry: str, error: Exception) -> BadInput:
    """Return the error that names the extra, or the package, which an environment needs."""
    for word, extra in EXTRAS.items():
        if word in entry:
            return missing_extra(f'envs: "{name}"', extra)
    text = " ".join(str(error).split())
    return BadInput(f'envs: "{name}" needs a package that is not installed: {text}')


def unknown(name: str) -> BadInput:
    """Return the error for an unknown environment name."""
    known = {*gymnasium.registry, *PROVIDED, *_registered, *atari.games()}
    known |= {f"ALE/{game}-v5" for game in atari.games()}
    known |= {f"{game}NoFrameskip-v4" for game in atari.games()}
    return BadInput(
        f'envs: "{name}" is not registered.{nearest(name, sorted(known))} '
        "'rookery envs' lists what is installed."
    )


def require_next_step(name: str, env: VectorEnv[Any, Any, Any]) -> None:
    """Raise unless the environment's autoreset mode is NEXT_STEP."""
    mode = env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        raise BadInput(
            f'envs: "{name}" has the autoreset mode {getattr(mode, "value", mode)}, and only '
            "NextStep is supported: make it with autoreset_mode=AutoresetMode.NEXT_STEP and set "
            'metadata["autoreset_mode"] to it'
        )


def _parameters(fn: EnvFn) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()
