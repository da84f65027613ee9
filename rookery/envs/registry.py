"""Environment names: registration, lists, and construction of the raw vector environment."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium import Env
from gymnasium.vector import AutoresetMode, VectorEnv

from rookery.envs.engines import atari, envpool
from rookery.envs.engines.single import ForLoop, GymnasiumAdapter, preprocess
from rookery.envs.options import EnvOptions
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


class Listed(NamedTuple):
    """An environment's name and the engine that would run it."""

    name: str
    engine: str


def registered_envs() -> list[Listed]:
    """Return all names that `make_env` knows without importing another module, sorted.

    Of Gymnasium's ids only the latest version is listed; "envpool:*" stands for EnvPool's
    environments, "tcp://HOST:PORT" for those of a server.
    """
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        older = newest.get((spec.namespace, spec.name), spec)
        if not is_ale(spec) and (spec.version or 0) >= (older.version or 0):
            newest[spec.namespace, spec.name] = spec
    listed = [Listed(name, "registered") for name in _registered]
    listed += [
        Listed(spec.id, "gymnasium-native" if spec.vector_entry_point else "for-loop")
        for spec in newest.values()
    ]
    listed += [
        Listed(name, "for-loop")
        for name, module in PROVIDED.items()
        if name not in gymnasium.registry and importlib.util.find_spec(module.partition(".")[0])
    ]
    listed += [Listed(f"ALE/{game}-v5", "ale") for game in atari.games()]
    if importlib.util.find_spec("envpool") is not None:
        listed.append(Listed("envpool:*", "envpool"))
    if importlib.util.find_spec("zmq") is not None:
        listed.append(Listed("tcp://HOST:PORT", "served"))
    return sorted(listed)


def is_ale(spec: Any) -> bool:
    """True if a Gymnasium id was registered by the ALE."""
    return "ale_py" in str(spec.entry_point)


def atari_game(name: str) -> atari.Game | None:
    """Return the Atari game that `name` means, for the ALE or EnvPool; None if there is none, or if
    Gymnasium has the name from another package."""
    module, _, plain = name.rpartition(":")
    if plain in gymnasium.registry and not is_ale(gymnasium.registry[plain]):
        return None
    game = atari.parse_game(plain)
    # EnvPool calls ALE/Pong-v5 just Pong-v5.
    return atari.parse_game(f"ALE/{plain}") if game is None and module == "envpool" else game


def plays_atari(name: str) -> bool:
    """True if `name` means an Atari game."""
    return atari_game(name) is not None


def is_served(name: str) -> bool:
    """True if a name is the address of a server, or several: "tcp://HOST:PORT,..."."""
    return name.startswith("tcp://")


def turned(name: str, first: int) -> str:
    """Return the name with its addresses rotated, for the actor whose first environment is number
    `first` of all actors'.

    Without that, actors with fewer environments than there are servers would all use the first
    servers. Names that are no addresses are returned as they are.
    """
    if not is_served(name):
        return name
    found = name.split(",")
    at = first % len(found)
    return ",".join(found[at:] + found[:at])


def raw_vector(
    name: str, options: EnvOptions, num_envs: int, threads: int, render_mode: str | None
) -> Any:
    """Return the vector environment of a name without this library's wrappers."""
    if name in _registered:
        return from_function(name, _registered[name], options, num_envs, render_mode)
    if is_served(name):
        try:
            from rookery.envs.remote.vector import make_served
        except ImportError as error:
            raise missing_extra(f'envs: "{name}"', "remote") from error
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
    game = atari_game(name)
    if game is not None:
        if render_mode is not None:
            return ForLoop(
                [lambda: atari.single_atari(game, options, render_mode)] * num_envs, name
            )
        return atari.make_atari(game, options, num_envs, threads)
    if name not in gymnasium.registry:
        known = {*gymnasium.registry, *PROVIDED, *_registered}
        for game_name in atari.games():
            known |= {game_name, f"ALE/{game_name}-v5", f"{game_name}NoFrameskip-v4"}
        raise BadInput(
            f'envs: "{name}" is not registered.{nearest(name, sorted(known))} '
            "'rookery envs' lists what is installed."
        )
    return from_gymnasium(name, options, num_envs, render_mode)


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
    try:
        explicit = inspect.signature(fn).parameters.keys()
    except (TypeError, ValueError):  # some builtins have none
        explicit = {}.keys()
    if "num_envs" in explicit:
        kwargs["num_envs"] = num_envs
    if render_mode is not None and "render_mode" in explicit:
        kwargs["render_mode"] = render_mode
    first = fn(**kwargs)
    if isinstance(first, VectorEnv):
        require(
            first.num_envs == num_envs,
            f'envs: "{name}" made a VectorEnv of {first.num_envs} environments instead of '
            f"{num_envs}: let its function take num_envs",
        )
        require(
            not (options.wraps_single or options.time_limit),
            f'envs: "{name}" makes a VectorEnv, to which env.frame_skip, resize, grey, noops, '
            "sticky and time_limit cannot be applied: do that inside its function",
        )
        return require_next_step(name, first)
    made = [first]

    def one() -> Env[Any, Any]:
        env = made.pop() if made else fn(**kwargs)
        for attribute in ("observation_space", "action_space", "reset", "step"):
            if not hasattr(env, attribute):
                raise BadInput(f'envs: "{name}" made {env!r}, which has no "{attribute}"')
        # Results of `gymnasium.make` have Gymnasium's API already.
        single = env if isinstance(env, gymnasium.Wrapper) else GymnasiumAdapter(env)
        return preprocess(name, single, options)

    return ForLoop([one] * num_envs, name)


def from_gymnasium(name: str, options: EnvOptions, num_envs: int, render_mode: str | None) -> Any:
    """Return the native vector environment of a Gymnasium id if it has one, else a for-loop."""
    spec = gymnasium.registry[name]
    kwargs = dict(options.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        if spec.vector_entry_point and not options.wraps_single and render_mode is None:
            if options.time_limit:
                kwargs["max_episode_steps"] = options.time_limit
            env = gymnasium.make_vec(
                name, num_envs, vectorization_mode="vector_entry_point", **kwargs
            )
            env.engine = "gymnasium-native"  # type: ignore[attr-defined]
            return require_next_step(name, env)

        def one() -> Env[Any, Any]:
            # Our time limit counts agent steps, so it is applied outside of the frame skip.
            limit = {"max_episode_steps": -1} if options.time_limit else {}
            single = gymnasium.make(name, disable_env_checker=True, **limit, **kwargs)
            return preprocess(name, single, options)

        return ForLoop([one] * num_envs, name)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise missing_dependency(name, str(spec.entry_point), error) from error
    except TypeError as error:
        raise BadInput(f'env.kwargs: "{name}" does not accept them: {error}') from error


def missing_dependency(name: str, entry: str, error: Exception) -> BadInput:
    """Return the error that names the extra, or the package, which an environment needs."""
    for word, extra in EXTRAS.items():
        if word in entry:
            return missing_extra(f'envs: "{name}"', extra)
    text = " ".join(str(error).split())
    return BadInput(f'envs: "{name}" needs a package that is not installed: {text}')


def require_next_step(name: str, env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Return `env`; raise unless its autoreset mode is NEXT_STEP."""
    mode = env.metadata.get("autoreset_mode")
    require(
        mode is AutoresetMode.NEXT_STEP,
        f'envs: "{name}" has the autoreset mode {getattr(mode, "value", mode)}, and only '
        "NextStep is supported: make it with autoreset_mode=AutoresetMode.NEXT_STEP and set "
        'metadata["autoreset_mode"] to it',
    )
    return env
