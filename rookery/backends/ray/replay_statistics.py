"""What replay memories in other processes tell of themselves."""

from __future__ import annotations

from rookery.backends.ray.messages import Kept, Stock
from rookery.memory.replay import Replay


def kept_of(memory: Replay) -> Kept:
    """How a replay memory is."""
    limiter = memory.limiter
    return Kept(
        inserted=limiter.inserted,
        sampled=limiter.sampled,
        trained=memory.trained,
        fill=memory.fill,
        age=memory.take_age(),
        may_insert=limiter.may_insert(),
    )


def stock_of(memory: Replay) -> Stock:
    """What a replay memory has to draw from."""
    limiter, distribution = memory.limiter, memory.distribution
    return Stock(
        total=distribution.total if limiter.started_at is not None else 0.0,
        windows=distribution.count,
        credit=limiter.credit // memory.windows.samples,
    )


class ReplayLedger:
    """The replay memories of a run, as one; empty where none is kept."""

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}
        """By number; a memory that was lost and its successor have two."""
        self.lost: set[int] = set()
        self.told = (0, 0, 0)
        self.line: str | None = None

    def take_report(self, seconds: float) -> dict[str, float]:
        """As a replay memory does; one that was lost counts for what it did, but no more for how
        full the memory is."""
        if not self.kept:
            return {}
        kept = self.kept.values()
        totals = (
            sum(k.inserted for k in kept),
            sum(k.sampled for k in kept),
            sum(k.trained for k in kept),
        )
        rates = [(now - before) / seconds for now, before in zip(totals, self.told, strict=True)]
        self.told = totals
        living = [k for number, k in self.kept.items() if number not in self.lost]
        count = max(1, len(living))
        return {
            "added_per_second": rates[0],
            "sampled_per_second": rates[1],
            "trained_per_second": rates[2],
            "replay_fill": sum(k.fill for k in living) / count,
            "replay_age_mean": sum(k.age for k in living) / count,
        }

    def describe(self) -> str | None:
        """The memory that will be taken, in a line."""
        return self.line
