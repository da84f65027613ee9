"""Deep reinforcement learning in parallel, from a laptop's core to a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.envs import make_env, register_env
    from rookery.runs.callbacks import Callback
    from rookery.training.start import resume, train
    from rookery.training.trained import TrainedRun

__version__ = "0.1.0"
__all__ = ["Callback", "TrainedRun", "load", "make_env", "register_env", "resume", "train"]

_HOMES = {
    "make_env": "rookery.envs",
    "register_env": "rookery.envs",
    "resume": "rookery.training.start",
    "train": "rookery.training.start",
    "Callback": "rookery.runs.callbacks",
    "TrainedRun": "rookery.training.trained",
}


def load(path: str) -> TrainedRun:
    """The run in a folder."""
    from rookery.training.trained import TrainedRun

    return TrainedRun.open(path)


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes seconds, and `rookery --help` needs none of it.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rookery' has no attribute {name!r}")
