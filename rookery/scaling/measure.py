"""How fast a run went once it was warm, and where its time went."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rookery.errors import RookeryError
from rookery.runs.table import Row, number

WARM_UP = 0.3
"""Share of a run's seconds that is left out."""
FIRST_UPDATES = 3
"""Updates until learning is under way: the first are slow."""


class Measured(NamedTuple):
    """A run at its steady pace."""

    speed: float
    """Environment steps a second, over all actors."""
    shares: dict[str, float]
    """Parts of the time by name, 0 to 1 of the seconds that passed; of actors and ranks the mean.
    Actors and learner on threads work at once, so that theirs do not add up to 1."""
    cores: float
    """Cores in use, over all actors and learners."""


def steady(rows: Sequence[Row]) -> Measured:
    """From the reports of a run, those left out that came in its first 30 % or before its third
    update; the first that counts is where the measurement begins."""
    end = number(rows[-1], "seconds") if rows else 0.0
    warm = [row for row in rows if number(row, "seconds") >= WARM_UP * end]
    counted = [row for row in warm if number(row, "updates") >= FIRST_UPDATES]
    if len(counted) < 2 or number(counted[-1], "seconds") <= number(counted[0], "seconds"):
        made = number(rows[-1], "updates") if rows else 0
        few = made < FIRST_UPDATES
        why = f"there were {made:g} updates" if few else f"there were {len(counted)} reports"
        raise RookeryError(f"{why} in {end:.1f} s, too few to measure; give it more --minutes")
    first, last = counted[0], counted[-1]
    passed = number(last, "seconds") - number(first, "seconds")
    steps = number(last, "env_steps") - number(first, "env_steps")
    shares = {
        name.removesuffix("_s"): sum(number(row, name) for row in counted[1:]) / passed
        for name in first
        if name.endswith("_s")
    }
    busy = sum(
        (number(row, "seconds") - number(before, "seconds")) * number(row, "cpu_percent") / 100
        for before, row in itertools.pairwise(counted)
    )
    return Measured(steps / passed, shares, busy / passed)


def combine(runs: Sequence[Measured]) -> Measured:
    """Several runs of one point as one: the median speed, the mean of everything else."""
    names = {name: None for run in runs for name in run.shares}
    return Measured(
        statistics.median(run.speed for run in runs),
        {name: mean(run.shares.get(name, 0.0) for run in runs) for name in names},
        mean(run.cores for run in runs),
    )


def mean(values: Iterable[float]) -> float:
    """The mean."""
    return statistics.fmean(values)
