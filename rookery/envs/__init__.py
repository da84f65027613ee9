"""Vector environments of every engine behind one interface, `make_env`."""

from rookery.envs.factory import (
    frame_stack_of,
    make_env,
    normalizer_of,
    pool_of,
    statistics,
)
from rookery.envs.human_scores import human_normalized, human_score
from rookery.envs.options import EnvOptions
from rookery.envs.registry import (
    plays_atari,
    register_env,
    registered,
    registered_envs,
    turned,
)

__all__ = [
    "EnvOptions",
    "frame_stack_of",
    "human_normalized",
    "human_score",
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
