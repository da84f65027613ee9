"""What `rookery serve` hands out: any environment that has a name here, its rewards raw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rookery.envs.factory import implied
from rookery.envs.options import EnvOptions
from rookery.envs.registry import raw_vector, require_next_step
from rookery.envs.remote.naming import is_served
from rookery.envs.wrappers.action_masks import LegalActions
from rookery.envs.wrappers.stacking import FrameStack
from rookery.errors import BadInput, require

CLIENTS_OWN = (
    *("one_life", "clip_reward", "normalize_obs", "normalize_reward", "reward_gamma"),
    *("check_bounds", "remote"),
)
"""Options that say how an agent learns: scores must stay raw, and statistics belong to the run."""


def maker(name: str, options: EnvOptions, threads: int) -> Callable[[int, bool], Any]:
    """From a number, and whether they will be drawn, to that many environments as one."""
    require(not is_served(name), f'serve: "{name}" is served already')
    defaults = EnvOptions()
    for field in fields(options):
        if field.name in CLIENTS_OWN and getattr(options, field.name) != getattr(
            defaults, field.name
        ):
            raise BadInput(f"env.{field.name} is the learner's affair: give it to the client")
    resolved = implied(name, options)

    def make(number: int, render: bool) -> Any:
        env = raw_vector(name, resolved, number, threads, "rgb_array" if render else None)
        require_next_step(name, env)
        if resolved.action_mask:
            env = LegalActions(env)
        stack = resolved.frame_stack or 1
        return FrameStack(env, stack) if stack > 1 else env

    return make
