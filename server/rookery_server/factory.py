"""From an environment's name to one that can be stepped: Gymnasium's, old Gym's, or a module's."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable

from rookery_server.errors import Unusable
from rookery_server.single import Single, TimeLimit

LIBRARIES = ("gymnasium", "gym")


class Recipe:
    """How to make one environment: found once, called for every copy.

    `name` is an id that Gymnasium or Gym has registered once `module` (if any) is imported, or
    the name of a class or function in that module. "module:id" says both. `actions` names a list
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
        self.module = imported(module or prefix or None)
        self.spec, self.library = find(self.name)
        if self.spec is None and not callable(getattr(self.module, self.name, None)):
            where = f' and "{self.module.__name__}" defines no such name' if self.module else ""
            raise Unusable(
                f'"{self.name}" is not registered{where}: name the package that registers it with '
                "--module"
            )
        self._pressed = with_buttons(actions) if actions else None

    def make(self, render: bool) -> Any:
        """One more environment in the API of `Single`."""
        try:
            env, time_limit = self._made(render)
        except TypeError as error:
            raise Unusable(f'"{self.name}" cannot be made: {error}') from error
        env = Single(self._pressed(env) if self._pressed else env)
        return TimeLimit(env, time_limit) if time_limit else env

    def _made(self, render: bool) -> tuple[Any, int | None]:
        if self.spec is None:
            return getattr(self.module, self.name)(**self.kwargs), None
        if self.library == "gymnasium":
            drawn = {"render_mode": "rgb_array"} if render else {}
            gymnasium = importlib.import_module("gymnasium")
            made = gymnasium.make(self.name, disable_env_checker=True, **drawn, **self.kwargs)
            return made, None
        return old_gym(self.spec, self.kwargs, render), self.spec.max_episode_steps


def with_buttons(actions: str) -> Callable[[Any], Any]:
    """What gives an environment the actions of a named list of joystick buttons."""
    module, _, name = actions.partition(":")
    buttons = getattr(imported(module), name, None)
    if buttons is None:
        raise Unusable(f'--actions: "{module}" defines no "{name}"')
    try:
        joypad = importlib.import_module("nes_py.wrappers").JoypadSpace
    except ImportError:
        raise Unusable("--actions needs nes_py, which is not installed") from None
    return lambda env: joypad(env, buttons)


def imported(module: str | None) -> Any:
    """The module, found also in the working directory."""
    if module is None:
        return None
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        text = " ".join(str(error).split())
        raise Unusable(
            f'the module "{module}" does not import: {type(error).__name__}: {text}'
        ) from error


def find(env_id: str) -> tuple[Any, str]:
    """The entry of an id in a registry, and the library whose it is; (None, "") without one."""
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


def old_gym(spec: Any, kwargs: dict, render: bool) -> Any:
    """An environment of old Gym, made from its entry point: `gym.make` of 0.26 puts wrappers
    around it that break environments of the four-value API."""
    entry = spec.entry_point
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = getattr(importlib.import_module(module), attribute)
    kwargs = {**(getattr(spec, "kwargs", None) or getattr(spec, "_kwargs", {})), **kwargs}
    if render and "rgb_array" in (getattr(entry, "metadata", None) or {}).get("render_modes", ()):
        kwargs["render_mode"] = "rgb_array"
    return entry(**kwargs)
