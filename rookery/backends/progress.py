"""How far a run is: counters every rank agrees on."""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rookery.config import RunConfig

WINDOW = 100
EMA_DECAY = 0.99
CPU_INTERVAL_S = 0.05


class Share(NamedTuple):
    """What one rank or one actor did lately; times are since the sitting began."""

    env_steps: int
    episodes: list[tuple[float, int]]
    notices: list[str]
    """What its environments had to tell."""
    env_s: float
    inference_s: float
    transfer_s: float
    learn_s: float
    reduce_s: float
    wait_s: float
    cpu_s: float
    interrupted: bool
    seconds: float


@dataclass
class Progress:
    """Counters over all ranks and all sittings of a run."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    seconds: float = 0.0
    return_ema: float | None = None
    returns: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    lengths: collections.deque[int] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW)
    )
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)
    cpu_asked: float = 0.0
    cpu_s: float = 0.0
    seconds_before: float = 0.0

    def take(self, shares: list[Share], updates: int) -> None:
        """Add what all ranks did in an iteration."""
        self.updates = updates
        self.interrupted = any(share.interrupted for share in shares)
        self.seconds = self.seconds_before + shares[0].seconds
        for share in shares:
            self.env_steps += share.env_steps
            for episode_return, length in share.episodes:
                self.note_episode(episode_return, length)

    def note_episode(self, episode_return: float, length: int) -> None:
        """Add an episode to the window and the moving average."""
        self.episodes += 1
        self.returns.append(episode_return)
        self.lengths.append(length)
        before = episode_return if self.return_ema is None else self.return_ema
        self.return_ema = EMA_DECAY * before + (1 - EMA_DECAY) * episode_return

    def elapsed(self) -> float:
        """Seconds since this sitting began."""
        return time.monotonic() - self.started

    def cpu_seconds(self) -> float:
        """CPU time of this process since this sitting began, all threads together.

        Asking the system takes long in some containers, so the answer may be a moment old.
        """
        now = time.monotonic()
        if now >= self.cpu_asked + CPU_INTERVAL_S:
            self.cpu_asked = now
            self.cpu_s = time.process_time() - self.cpu_started
        return self.cpu_s

    @property
    def return_mean(self) -> float | None:
        """Mean of the last 100 training episodes, or of those there are."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def ending(self, config: RunConfig) -> str | None:
        """Why the run is over, or None."""
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
        """Whether a full window of episodes has the return asked for."""
        if stop_return is None or len(self.returns) < WINDOW:
            return False
        mean = self.return_mean
        return mean is not None and mean >= stop_return

    def report(self) -> dict[str, Any]:
        """The columns of progress.csv that are known here; no mean before the first episode."""
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
        """What `load` needs to go on."""
        return {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "return_ema": self.return_ema,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def rewind(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned earlier in this sitting; time goes on."""
        seconds, before = self.seconds, self.seconds_before
        self.returns.clear()
        self.lengths.clear()
        self.load(state)
        self.seconds, self.seconds_before = seconds, before

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.env_steps = state["env_steps"]
        self.updates = state["updates"]
        self.episodes = state["episodes"]
        self.seconds = self.seconds_before = state["seconds"]
        self.return_ema = state["return_ema"]
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
