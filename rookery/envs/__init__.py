"""Vector environments of every engine behind one interface, `make_env`."""

from rookery.envs.builtin import register_builtin
from rookery.envs.engines.atari import human_normalized, plays_atari
from rookery.envs.factory import make_env, pool_of
from rookery.envs.human_scores import HUMAN_SCORES
from rookery.envs.listing import Listed, env_info, registered_envs
from rookery.envs.options import EnvOptions
from rookery.envs.registry import register_env, registered
from rookery.envs.remote.naming import turned
from rookery.envs.wrappers.moments import RunningMoments
from rookery.envs.wrappers.normalize import normalizer_of, statistics
from rookery.envs.wrappers.stacking import frame_stack_of

register_builtin()

__all__ = [
    "HUMAN_SCORES",
    "EnvOptions",
    "Listed",
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
