"""One file an algorithm: its config, its pure loss functions, its class."""

from rookery.algorithms import apex, dqn, ppo, r2d2, vpg
from rookery.algorithms.base import ALGORITHMS, Algorithm, Spaces, algorithm_class

__all__ = ["ALGORITHMS", "Algorithm", "Spaces", "algorithm_class"]
__all__ += ["apex", "dqn", "ppo", "r2d2", "vpg"]
