"""Environments by name, of Gymnasium, of old Gym, or a class in a module, and vectors of them."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np

from rookery_server.errors import Unusable
from rookery_server.single import SingleEnv, TimeLimit
from rookery_server.spaces import at, describe, leaves, nested

LIBRARIES = ("gymnasium", "gym")
Batch = Tuple[Any, np.ndarray, np.ndarray, np.ndarray, List[dict]]


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
        time_limit = None
        try:
            if self.spec is None:
                env = getattr(self.module, self.name)(**self.kwargs)
            elif self.library == "gymnasium":
                kwargs = {**({"render_mode": "rgb_array"} if render else {}), **self.kwargs}
                gymnasium = importlib.import_module("gymnasium")
                env = gymnasium.make(self.name, disable_env_checker=True, **kwargs)
            else:
                env = make_old_gym(self.spec, self.kwargs, render)
                time_limit = self.spec.max_episode_steps
        except TypeError as error:
            raise Unusable(f'"{self.name}" cannot be made: {error}') from error
        env = SingleEnv(self._joypad(env) if self._joypad else env)
        return TimeLimit(env, time_limit) if time_limit else env


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


class SequentialVector:
    """Copies of a `SingleEnv`, stepped one after the other, in NEXT_STEP autoreset mode.

    The interface is that of Gymnasium's vector environments, except that infos are a list with the
    info of each environment. Observations are overwritten by the next step.
    """

    def __init__(self, make: Callable[[], Any], count: int):
        self.envs: list[Any] = []
        try:
            for _ in range(count):
                self.envs.append(make())
            self.single_observation_space = self.envs[0].observation_space
            self.single_action_space = self.envs[0].action_space
            seen = describe(self.single_observation_space, [])
            self._leaves = leaves(seen)
            self._action = describe(self.single_action_space, [])
            self._action_leaves = leaves(self._action)
        except BaseException:
            self.close()
            raise
        self.num_envs = count
        self._rows = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._obs = nested(seen, iter(self._rows))
        self._ended = [False] * count

    def reset(self, seed: int | None = None) -> tuple[Any, list[dict]]:
        """Reset all environments; number i is seeded with `seed + i`."""
        infos = []
        for i, env in enumerate(self.envs):
            obs, info = env.reset(None if seed is None else seed + i)
            self._write(i, obs)
            infos.append(info)
        self._ended = [False] * self.num_envs
        return self._obs, infos

    def step(self, actions: Any) -> Batch:
        """Reset the environments whose episode has ended, and step the others."""
        infos = []
        rewards = np.zeros(self.num_envs)
        terminations = np.zeros(self.num_envs, bool)
        truncations = np.zeros(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            if self._ended[i]:
                obs, info = env.reset()
                self._ended[i] = False
            else:
                parts = (at(actions, leaf.path)[i] for leaf in self._action_leaves)
                action = nested(self._action, parts)
                obs, rewards[i], terminations[i], truncations[i], info = env.step(action)
                self._ended[i] = bool(terminations[i] or truncations[i])
            self._write(i, obs)
            infos.append(info)
        return self._obs, rewards, terminations, truncations, infos

    def render(self) -> Iterator[Any]:
        """Yield an image of each environment, rendered on demand."""
        return (env.render() for env in self.envs)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _write(self, i: int, obs: Any) -> None:
        for leaf, rows in zip(self._leaves, self._rows):
            value = np.asarray(at(obs, leaf.path))
            same_kind = value.dtype == leaf.dtype or np.can_cast(
                value.dtype, leaf.dtype, "same_kind"
            )
            if value.shape != leaf.shape or not same_kind:
                where = f' at "{".".join(map(str, leaf.path))}"' if leaf.path else ""
                raise ValueError(
                    f"observation of dtype {value.dtype} and shape {value.shape}{where}, but its "
                    f"space has {leaf.dtype} and {leaf.shape}"
                )
            rows[i] = value
