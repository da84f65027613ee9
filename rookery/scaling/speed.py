"""Speed of a run, where its time went, and the speed that twice as many actors would have."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rookery.errors import RookeryError
from rookery.runs.files import Row, number

WARM_UP = 0.3
"""Fraction of a run's seconds that is left out of the measurement."""
FIRST_UPDATES = 3
"""Updates before the measurement: the first are slow."""

Coupling = Literal["turns", "ratio", "free"]
"""Dependence of learner and actors on each other. turns: they alternate (serial, ranks). ratio:
they run at the same time with a fixed number of samples per step (threads with samples_per_insert).
free: they run at the same time, independently."""


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


class Prediction(NamedTuple):
    """A predicted speed, and what limits it: cores, learner, sums or nothing."""

    speed: float
    limit: str


def predict(
    now: Measured, actors: int, cores: int, coupling: Coupling, strong: bool = False
) -> Prediction:
    """Predict the speed at twice the actors:

        S' = 2 S min(1, C / D, 1 / 2B, 1 / G)

    S: speed now. C: cores of the machine. D: cores that twice the actors would use, from those
    in use now, U, of which the learner has L (its share of time in updates, a core's worth):
    2U, but 2(U - L) + L if the learner is independent. Sleeping and waiting use no core, and
    the cores are shared evenly.

    B: the fraction of the time that the learner is busy (does not wait), if it must use a fixed
    number of samples per step; the one learner can do 1 / B of its present work. 0 if the
    learner is independent, or every actor has its own.

    G: how much longer a round takes if all-reduce takes a fraction R of it now: 1 - R + k R,
    k = log2(2N) / log2(N) for N ranks, 1 for a single one; twice that in a strong study, where
    a round has as many sums for half of the work. Without ranks there is no all-reduce.
    """
    learner = min(now.shares.get("learn", 0.0), now.cores) if coupling == "free" else 0.0
    limits = {"cores": cores / max(2 * (now.cores - learner) + learner, 1e-9)}
    if coupling == "ratio":
        busy = max(0.0, 1 - now.shares.get("wait", 0.0))
        limits["learner"] = 1 / max(2 * busy, 1e-9)
    if coupling == "turns":
        k = math.log2(2 * actors) / math.log2(actors) if actors > 1 else 1.0
        reduce = now.shares.get("reduce", 0.0)
        limits["sums"] = 1 / (1 - reduce + (2 * k if strong else k) * reduce)
    limit = min(limits, key=lambda name: limits[name])
    if limits[limit] >= 1:
        return Prediction(2 * now.speed, "nothing")
    return Prediction(2 * now.speed * limits[limit], limit)
