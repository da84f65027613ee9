"""From a name to the raw vector environment behind it."""

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
from rookery.envs.engines.single import Modern, preprocess, wraps_single
from rookery.envs.options import EnvOptions
from rookery.envs.remote.naming import is_served
from rookery.errors import BadInput, missing_extra, nearest, require

EnvFn = Callable[..., Any]
PROVIDED = {"tetris_gymnasium/Tetris": "tetris_gymnasium.envs"}
"""Gymnasium ids that a module registers when it is imported, which is done on demand."""
EXTRAS = {"box2d": "box2d", "tetris": "tetris"}
"""Extras by a word in the entry point of the environments that need them."""
_registered: dict[str, EnvFn] = {}


def register_env(name: str, fn: EnvFn, *, replace: bool = False) -> None:
    """Let `make_env(name)` call `fn(**env.kwargs)`.

    `fn` returns a Gymnasium environment, one of the old four-value API, or a VectorEnv; in the
    last case it may take `num_envs`.
    """
    require(callable(fn), f"envs: what is registered as {name!r} must be callable, got {fn!r}")
    if name in _registered and not replace:
        raise BadInput(f'envs: "{name}" is registered already; pass replace=True to replace it')
    _registered[name] = fn


def registered() -> dict[str, EnvFn]:
    """What `register_env` was given, by name."""
    return dict(_registered)


def raw_vector(
    name: str, options: EnvOptions, num_envs: int, threads: int, render_mode: str | None
) -> Any:
    """The vector environment behind a name, before this library's wrappers."""
    if name in _registered:
        return from_function(name, _registered[name], options, num_envs, render_mode)
    if is_served(name):
        from rookery.envs.remote.vector import make_served

        return make_served(name, options, num_envs, render_mode)
    if name.startswith(envpool.PREFIX):
        return envpool.make_pool(name, options, num_envs, threads, render_mode)
    if ":" in name:
        found = from_module(name)
        if not isinstance(found, str):
            return from_function(name, found, options, num_envs, render_mode)
        name = found
    if name in PROVIDED:
        import_provider(name)
    game = None if name in gymnasium.registry and not is_ale(name) else atari.parse(name)
    if game is not None:
        if render_mode is not None:
            return ForLoop(
                [lambda: atari.single_atari(game, options, render_mode)] * num_envs, name
            )
        return atari.make_atari(game, options, num_envs, threads)
    if name not in gymnasium.registry:
        raise unknown(name)
    return from_gymnasium(name, options, num_envs, render_mode)


def import_provider(name: str) -> None:
    """Have the package of an environment register it; BadInput that names the extra without it."""
    try:
        importlib.import_module(PROVIDED[name])
    except ImportError as error:
        raise missing_dependency(name, PROVIDED[name], error) from error


def is_ale(name: str) -> bool:
    """Whether a Gymnasium id is one of those the ALE registers."""
    return "ale_py" in str(gymnasium.registry[name].entry_point)


def from_module(name: str) -> Any:
    """What "package.module:EnvId" names: a Gymnasium id, a registered function, or a class of
    environments.

    The name may come from the config.json of a stranger's run, so nothing else is ever called.
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
            f'envs: "{name}" needs the module "{module_name}", which does not import: '
            f"{type(error).__name__}: {text}"
        ) from error
    if env_id in gymnasium.registry or atari.parse(env_id):
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
    """True if `found` is a class of Gymnasium's environments, or of the old Gym's, which need not
    be installed."""
    if not isinstance(found, type):
        return False
    old = (base for base in found.__mro__ if base.__module__.partition(".")[0] == "gym")
    return issubclass(found, (Env, VectorEnv)) or any(base.__name__ == "Env" for base in old)


def from_function(
    name: str, fn: EnvFn, options: EnvOptions, num_envs: int, render_mode: str | None
) -> Any:
    """Environments that `fn` makes: one VectorEnv, or `num_envs` single ones."""
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
        return limited(preprocess(name, modern(name, env), options), options)

    return ForLoop([one] * num_envs, name)


def checked_vector(
    name: str, env: VectorEnv[Any, Any, Any], options: EnvOptions, num_envs: int
) -> VectorEnv[Any, Any, Any]:
    """A user's VectorEnv, if it has the size asked for and no option has to reach inside."""
    if env.num_envs != num_envs:
        raise BadInput(
            f'envs: "{name}" made a VectorEnv of {env.num_envs} environments where {num_envs} '
            "were asked for: let its function take num_envs"
        )
    if wraps_single(options) or options.time_limit:
        raise BadInput(
            f'envs: "{name}" makes a VectorEnv, which env.frame_skip, resize, grey, noops, '
            "sticky and time_limit cannot reach: let its function do that"
        )
    return env


def modern(name: str, env: Any) -> Env[Any, Any]:
    """`env` in today's API; what Gymnasium's own `make` returned is in it already."""
    for attribute in ("observation_space", "action_space", "reset", "step"):
        if not hasattr(env, attribute):
            raise BadInput(f'envs: "{name}" made {env!r}, which has no "{attribute}"')
    return env if isinstance(env, gymnasium.Wrapper) else Modern(env)


def limited(env: Env[Any, Any], options: EnvOptions) -> Env[Any, Any]:
    """`env` truncated after the agent steps of env.time_limit, if that is set."""
    return gymnasium.wrappers.TimeLimit(env, options.time_limit) if options.time_limit else env


def from_gymnasium(name: str, options: EnvOptions, num_envs: int, render_mode: str | None) -> Any:
    """A Gymnasium id: its own vector environment if it has one, else a for-loop."""
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
            # Our own limit counts agent steps, so it stands outside of the preprocessing.
            limit = {"max_episode_steps": -1} if options.time_limit else {}
            single = gymnasium.make(name, disable_env_checker=True, **limit, **kwargs)
            return limited(preprocess(name, single, options), options)

        return ForLoop([one] * num_envs, name)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        entry = str(gymnasium.registry[name].entry_point)
        raise missing_dependency(name, entry, error) from error
    except TypeError as error:
        raise BadInput(f'env.kwargs do not suit "{name}": {error}') from error


def missing_dependency(name: str, entry: str, error: Exception) -> BadInput:
    """Which extra brings what an environment with this entry point lacks."""
    for word, extra in EXTRAS.items():
        if word in entry:
            return missing_extra(f'envs: "{name}"', extra)
    text = " ".join(str(error).split())
    return BadInput(f'envs: "{name}" needs a package that is not installed: {text}')


def unknown(name: str) -> BadInput:
    """The error for a name that nothing answers to."""
    known = {*gymnasium.registry, *PROVIDED, *_registered, *atari.games()}
    known |= {f"ALE/{game}-v5" for game in atari.games()}
    known |= {f"{game}NoFrameskip-v4" for game in atari.games()}
    return BadInput(
        f'envs: "{name}" is not registered.{nearest(name, sorted(known))} '
        "'rookery envs' lists what is installed."
    )


def require_next_step(name: str, env: VectorEnv[Any, Any, Any]) -> None:
    """Refuse an environment that resets in another way than on the next step."""
    mode = env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        told = getattr(mode, "value", mode)
        raise BadInput(
            f'envs: "{name}" resets in mode {told}, and only NextStep is supported: make it with '
            'autoreset_mode=AutoresetMode.NEXT_STEP and say so in metadata["autoreset_mode"]'
        )


def _parameters(fn: EnvFn) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()
