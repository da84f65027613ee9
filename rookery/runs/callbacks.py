"""Callbacks: the console, files and a user's own code are called on the events of a run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rookery.errors import BadInput, require
from rookery.runs.run import Run


class Episode(NamedTuple):
    """A finished training episode."""

    env_steps: int
    """Environment steps of the run, up to the report that the episode came with."""
    episode_return: float
    length: int


class Update(NamedTuple):
    """Counters after a round in which the learner made updates."""

    env_steps: int
    updates: int


class Callback:
    """Base class of callbacks: override what you need.

    Methods are called in the process that writes the run's folder: rank 0 on `ranks`, the driver on
    `ray`. An exception in one of them ends the run.
    """

    def on_start(self, run: Run) -> None:
        """Called before the first step, with the run's folder."""

    def on_report(self, report: Mapping[str, float]) -> None:
        """Called about once a second, with the columns of a row of progress.csv."""

    def on_episode(self, episode: Episode) -> None:
        """Called for every finished training episode."""

    def on_update(self, update: Update) -> None:
        """Called after every round in which the learner made one or more updates."""

    def on_checkpoint(self, path: Path) -> None:
        """Called when a checkpoint is complete, with its folder."""

    def on_rewind(self, env_steps: int) -> None:
        """Called when a run on Ray lost its learner and continues from the checkpoint of
        `env_steps`: later reports will be made again."""

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called with the contents of result.json when the run is over."""

    def close(self) -> None:
        """Called last, also after a failure."""


class Callbacks(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = list(callbacks)

    def on_start(self, run: Run) -> None:
        for callback in self.callbacks:
            callback.on_start(run)

    def on_report(self, report: Mapping[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_report(report)

    def on_episode(self, episode: Episode) -> None:
        for callback in self.callbacks:
            callback.on_episode(episode)

    def on_update(self, update: Update) -> None:
        for callback in self.callbacks:
            callback.on_update(update)

    def on_checkpoint(self, path: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(path)

    def on_rewind(self, env_steps: int) -> None:
        for callback in self.callbacks:
            callback.on_rewind(env_steps)

    def on_end(self, result: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_end(result)

    def close(self) -> None:
        """Close every callback, also when one of them fails to."""
        with ExitStack() as stack:
            for callback in reversed(self.callbacks):
                stack.callback(callback.close)


def load_callback(name: str) -> Callback:
    """Return an instance of the class "package.module:Name"."""
    module_name, _, class_name = name.partition(":")
    require(module_name and class_name, f'callbacks: expected package.module:Name, got "{name}"')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f'callbacks: cannot import "{module_name}": {error}') from None
    kind = getattr(module, class_name, None)
    require(
        isinstance(kind, type) and issubclass(kind, Callback),
        f'callbacks: "{name}" is not a subclass of rookery.Callback',
    )
    return kind()  # type: ignore[misc]
