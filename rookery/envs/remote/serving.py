"""Environments for `rookery serve`: any name that `make_env` knows, with raw rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rookery.envs.factory import resolve_options
from rookery.envs.options import EnvOptions
from rookery.envs.registry import raw_vector, require_next_step
from rookery.envs.remote.naming import is_served
from rookery.envs.wrappers.action_masks import ActionMaskWrapper
from rookery.envs.wrappers.stacking import FrameStack
from rookery.errors import BadInput, require

CLIENT_OPTIONS = (
    *("one_life", "clip_reward", "normalize_obs", "normalize_reward", "reward_gamma"),
    *("check_bounds", "remote"),
)
"""Options that must be set on the client: rewards are sent raw, and statistics belong to a run."""


def maker(name: str, options: EnvOptions, threads: int) -> Callable[[int, bool], Any]:
    """Return a function (number of environments, render) -> vector environment."""
    require(not is_served(name), f'serve: "{name}" is already served')
    defaults = EnvOptions()
    for field in fields(options):
        if field.name in CLIENT_OPTIONS and getattr(options, field.name) != getattr(
            defaults, field.name
        ):
            raise BadInput(f"env.{field.name} must be set on the client, not on the server")
    resolved = resolve_options(name, options)

    def make(number: int, render: bool) -> Any:
        env = raw_vector(name, resolved, number, threads, "rgb_array" if render else None)
        require_next_step(name, env)
        if resolved.action_mask:
            env = ActionMaskWrapper(env)
        stack = resolved.frame_stack or 1
        return FrameStack(env, stack) if stack > 1 else env

    return make
