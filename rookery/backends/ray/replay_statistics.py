"""Counters of replay memories in other processes, and their sums for reports."""

from __future__ import annotations

from rookery.backends.ray.messages import ReplayStatus, ShardStock
from rookery.memory.replay import Replay


def replay_status_of(memory: Replay) -> ReplayStatus:
    """Return the counters of a replay memory."""
    limiter = memory.limiter
    return ReplayStatus(
        inserted=limiter.inserted,
        sampled=limiter.sampled,
        trained=memory.trained,
        fill=memory.fill,
        age=memory.take_age(),
        may_insert=limiter.may_insert(),
    )


def shard_stock_of(memory: Replay) -> ShardStock:
    """Return what a replay memory has to draw from."""
    limiter, distribution = memory.limiter, memory.distribution
    return ShardStock(
        total=distribution.total if limiter.started_at is not None else 0.0,
        windows=distribution.count,
        credit=limiter.credit // memory.windows.samples,
    )


class ReplayStatistics:
    """The counters of all replay memories of a run; empty without a replay."""

    def __init__(self) -> None:
        self.statuses: dict[int, ReplayStatus] = {}
        """By number; a memory that replaces a lost one has a number of its own."""
        self.lost: set[int] = set()
        """Numbers of memories that were lost."""
        self.totals = (0, 0, 0)
        """Rows inserted, sampled and trained on at the last report."""
        self.description: str | None = None

    def take_report(self, seconds: float) -> dict[str, float]:
        """Return the same columns as a replay memory does, over the last `seconds`.

        A lost memory's counters stay in the sums, but it does not count for how full memory is.
        """
        if not self.statuses:
            return {}
        statuses = self.statuses.values()
        totals = (
            sum(status.inserted for status in statuses),
            sum(status.sampled for status in statuses),
            sum(status.trained for status in statuses),
        )
        rates = [(now - before) / seconds for now, before in zip(totals, self.totals, strict=True)]
        self.totals = totals
        living = [status for number, status in self.statuses.items() if number not in self.lost]
        count = max(1, len(living))
        return {
            "added_per_second": rates[0],
            "sampled_per_second": rates[1],
            "trained_per_second": rates[2],
            "replay_fill": sum(status.fill for status in living) / count,
            "replay_age_mean": sum(status.age for status in living) / count,
        }
