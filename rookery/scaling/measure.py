"""Speed of a run after its warm-up, and where its time went."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rookery.errors import RookeryError
from rookery.runs.files import Row, number

WARM_UP = 0.3
"""Fraction of a run's seconds that is left out of the measurement."""
FIRST_UPDATES = 3
"""Updates before the measurement: the first are slow."""


class Measured(NamedTuple):
    """Speed and use of time of a run after its warm-up."""

    speed: float
    """Environment steps per second, over all actors."""
    shares: dict[str, float]
    """Fractions of the time by kind of work, averaged over actors or ranks. They do not add up to 1
    where actors and learner work at the same time, on threads."""
    cores: float
    """Cores in use, over all actors and learners."""


def measure_run(rows: Sequence[Row]) -> Measured:
    """Measure a run from its reports, without those of its first 30 % or before its third update.

    The first report that counts is where the measurement begins."""
    end = number(rows[-1], "seconds") if rows else 0.0
    warm = [row for row in rows if number(row, "seconds") >= WARM_UP * end]
    counted = [row for row in warm if number(row, "updates") >= FIRST_UPDATES]
    if len(counted) < 2 or number(counted[-1], "seconds") <= number(counted[0], "seconds"):
        made = number(rows[-1], "updates") if rows else 0
        few = made < FIRST_UPDATES
        found = f"{made:g} updates" if few else f"{len(counted)} reports"
        raise RookeryError(f"{found} in {end:.1f} s are too few to measure; increase --minutes")
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


def combine_runs(runs: Sequence[Measured]) -> Measured:
    """Combine the runs of one point: the median speed, the mean of everything else."""
    names = {name: None for run in runs for name in run.shares}
    return Measured(
        statistics.median(run.speed for run in runs),
        {name: statistics.fmean(run.shares.get(name, 0.0) for run in runs) for name in names},
        statistics.fmean(run.cores for run in runs),
    )
