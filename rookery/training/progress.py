"""Counters of a run that every rank agrees on."""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rookery.backends.base import Report
from rookery.config import RunConfig

WINDOW = 100
"""Episodes that mean returns are over."""
EMA_DECAY = 0.99


@dataclass
class Progress:
    """Counters over all ranks since the run's first start, earlier processes included."""

    env_steps: int = 0
    updates: int = 0
    samples: float | Tensor = 0.0
    """See `Report.samples`."""
    episodes: int = 0
    seconds: float = 0.0
    input_bytes: int | None = None
    """Size of a batch; None before the first."""
    return_ema: float | None = None
    returns: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    lengths: collections.deque[int] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)
    """Start or resumption of the run in this process."""
    seconds_before: float = 0.0
    """Training time before the resumption."""

    def add(self, report: Report) -> None:
        """Add what all workers did since the last report."""
        self.updates, self.samples = report.updates, report.samples
        self.input_bytes = report.input_bytes
        self.interrupted = any(worker.interrupted for worker in report.workers)
        # All ranks take the time of the first, so that they agree when time is up.
        self.seconds = self.seconds_before + report.workers[0].seconds
        for worker in report.workers:
            self.env_steps += worker.env_steps
            for episode_return, length in worker.episodes:
                self.add_episode(episode_return, length)

    def add_episode(self, episode_return: float, length: int) -> None:
        """Add an episode to the window and the moving average."""
        self.episodes += 1
        self.returns.append(episode_return)
        self.lengths.append(length)
        before = episode_return if self.return_ema is None else self.return_ema
        self.return_ema = EMA_DECAY * before + (1 - EMA_DECAY) * episode_return

    def elapsed(self) -> float:
        """Return the seconds since the start or resumption in this process."""
        return time.monotonic() - self.started

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 training episodes, or of those there are."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def end_reason(self, config: RunConfig) -> str | None:
        """Return why the run is over; None if it is not."""
        if self.interrupted:
            return "interrupted"
        if self.solved(config.stop_return):
            return "solved"
        if self.env_steps >= config.env_steps:
            return "finished"
        if config.stop_minutes is not None and self.seconds >= 60 * config.stop_minutes:
            return "time is up"
        return None

    def solved(self, stop_return: float | None) -> bool:
        """True if the mean return over a full window of episodes has reached `stop_return`."""
        if stop_return is None or len(self.returns) < WINDOW:
            return False
        mean = self.return_mean
        return mean is not None and mean >= stop_return

    def columns(self) -> dict[str, Any]:
        """Return the columns of progress.csv that are known here; no means before an episode."""
        columns: dict[str, Any] = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            "episodes": self.episodes,
        }
        if self.returns:
            columns |= {
                "episode_return_mean": self.return_mean,
                "episode_return_min": min(self.returns),
                "episode_return_max": max(self.returns),
                "episode_return_ema": self.return_ema,
                "episode_length_mean": sum(self.lengths) / len(self.lengths),
            }
        return columns

    def state(self) -> dict[str, Any]:
        """Return what `load` needs to continue."""
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "return_ema": self.return_ema,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.rewind(state)
        self.seconds = self.seconds_before = state["seconds"]

    def rewind(self, state: dict[str, Any]) -> None:
        """Go back to an earlier state of this run; the time spent since is not taken back."""
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self.samples = float(state.get("samples", 0))
        self.episodes = state["episodes"]
        self.return_ema = state["return_ema"]
        self.returns.clear()
        self.lengths.clear()
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
