"""Vector environments of every engine behind one interface, `make_env`."""

from rookery.envs.builtin import register_builtin
from rookery.envs.factory import (
    env_info,
    frame_stack_of,
    make_env,
    normalizer_of,
    pool_of,
    statistics,
)
from rookery.envs.human_scores import human_normalized
from rookery.envs.options import EnvOptions
from rookery.envs.registry import (
    plays_atari,
    register_env,
    registered,
    registered_envs,
    turned,
)
from rookery.envs.wrappers.normalize import RunningMoments

register_builtin()

__all__ = [
    "EnvOptions",
    "RunningMoments",
    "env_info",
    "frame_stack_of",
    "human_normalized",
    "make_env",
    "normalizer_of",
    "plays_atari",
    "pool_of",
    "register_env",
    "registered",
    "registered_envs",
    "statistics",
    "turned",
]
