"""Lists of the installed environments, and a description of one."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import Any, NamedTuple

import gymnasium

from rookery.envs.engines import atari
from rookery.envs.factory import make_env, resolve_options
from rookery.envs.options import EnvOptions
from rookery.envs.registry import PROVIDED, is_ale, registered


class Listed(NamedTuple):
    """An environment's name and the engine that would run it."""

    name: str
    engine: str


def registered_envs() -> list[Listed]:
    """Return all names that `make_env` knows without importing another module, sorted.

    Of Gymnasium's ids only the latest version is listed; "envpool:*" stands for EnvPool's
    environments, "tcp://HOST:PORT" for those of a server.
    """
    listed = [Listed(name, "registered") for name in registered()]
    listed += [
        Listed(spec.id, "gymnasium-native" if spec.vector_entry_point else "for-loop")
        for spec in latest_specs()
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


def latest_specs() -> list[Any]:
    """Return the newest version of every environment in Gymnasium's registry except Atari's."""
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        if is_ale(spec.id):
            continue
        key = (spec.namespace, spec.name)
        if key not in newest or (spec.version or 0) >= (newest[key].version or 0):
            newest[key] = spec
    return list(newest.values())


def env_info(name: str, options: EnvOptions | None = None) -> dict[str, Any]:
    """Return spaces, engine, resolved options and time limit of an environment."""
    options = options or EnvOptions()
    env = make_env(name, options)
    try:
        return {
            "name": name,
            "engine": env.engine,  # type: ignore[attr-defined]
            "observation_space": env.single_observation_space,
            "action_space": env.single_action_space,
            "options": asdict(resolve_options(name, options)),
            "time_limit": getattr(env.spec, "max_episode_steps", None),
        }
    finally:
        env.close()
