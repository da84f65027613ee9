"""Environments by name: of Gymnasium, of old Gym, or a class in a module."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable

from rookery_server.errors import Unusable
from rookery_server.single import SingleEnv, TimeLimit

LIBRARIES = ("gymnasium", "gym")


class EnvFactory:
    """Makes copies of one environment.

    `name` is an id that Gymnasium or Gym has registered once `module` (if any) is imported, or
    the name of a class or function in that module. "module:id" gives both. `actions` names a list
    of joystick buttons, "module:NAME", for nes_py's JoypadSpace.
    """

    def __init__(
        self,
        name: str,
        module: str | None = None,
        kwargs: dict | None = None,
        actions: str | None = None,
    ):
        prefix, _, env_id = name.rpartition(":")
        self.name = env_id
        self.kwargs = dict(kwargs or {})
        self.module = import_or_fail(module or prefix or None)
        self.spec, self.library = find_spec(self.name)
        if self.spec is None and not callable(getattr(self.module, self.name, None)):
            where = f' and "{self.module.__name__}" defines no such name' if self.module else ""
            raise Unusable(
                f'"{self.name}" is not registered{where}: give the package that registers it with '
                "--module"
            )
        self._joypad = joypad_wrapper(actions) if actions else None

    def make(self, render: bool) -> Any:
        """Return a new environment as a `SingleEnv`."""
        try:
            env, time_limit = self._make(render)
        except TypeError as error:
            raise Unusable(f'"{self.name}" cannot be made: {error}') from error
        env = SingleEnv(self._joypad(env) if self._joypad else env)
        return TimeLimit(env, time_limit) if time_limit else env

    def _make(self, render: bool) -> tuple[Any, int | None]:
        if self.spec is None:
            return getattr(self.module, self.name)(**self.kwargs), None
        if self.library == "gymnasium":
            render_kwargs = {"render_mode": "rgb_array"} if render else {}
            gymnasium = importlib.import_module("gymnasium")
            made = gymnasium.make(
                self.name, disable_env_checker=True, **render_kwargs, **self.kwargs
            )
            return made, None
        return make_old_gym(self.spec, self.kwargs, render), self.spec.max_episode_steps


def joypad_wrapper(actions: str) -> Callable[[Any], Any]:
    """Return the wrapper that maps discrete actions to the joystick buttons in "module:NAME"."""
    module, _, name = actions.partition(":")
    buttons = getattr(import_or_fail(module), name, None)
    if buttons is None:
        raise Unusable(f'--actions: "{module}" defines no "{name}"')
    try:
        joypad = importlib.import_module("nes_py.wrappers").JoypadSpace
    except ImportError:
        raise Unusable("--actions needs nes_py, which is not installed") from None
    return lambda env: joypad(env, buttons)


def import_or_fail(module: str | None) -> Any:
    """Import a module, which may be in the working directory."""
    if module is None:
        return None
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        text = " ".join(str(error).split())
        raise Unusable(
            f'cannot import the module "{module}": {type(error).__name__}: {text}'
        ) from error


def find_spec(env_id: str) -> tuple[Any, str]:
    """Return the registered spec of an id and its library; (None, "") if there is none."""
    installed = 0
    for name in LIBRARIES:
        try:
            registration = importlib.import_module(name + ".envs.registration")
        except ImportError:
            continue
        installed += 1
        specs = getattr(registration.registry, "env_specs", registration.registry)
        if env_id in specs:
            return specs[env_id], name
    if not installed:
        raise Unusable("neither gymnasium nor gym is installed: pip install one of them")
    return None, ""


def make_old_gym(spec: Any, kwargs: dict, render: bool) -> Any:
    """Return an environment of old Gym, made from its entry point.

    `gym.make` of 0.26 adds wrappers that break environments of the four-value API.
    """
    entry = spec.entry_point
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = getattr(importlib.import_module(module), attribute)
    kwargs = {**(getattr(spec, "kwargs", None) or getattr(spec, "_kwargs", {})), **kwargs}
    if render and "rgb_array" in (getattr(entry, "metadata", None) or {}).get("render_modes", ()):
        kwargs["render_mode"] = "rgb_array"
    return entry(**kwargs)
