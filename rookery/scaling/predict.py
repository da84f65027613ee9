"""Predict the speed of twice as many actors from where time goes now."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from rookery.scaling.measure import Measured

Coupling = Literal["turns", "ratio", "free"]
"""How learner and actors depend on each other. turns: they alternate (serial, ranks). ratio: they
run at the same time with a fixed number of samples per step (threads with samples_per_insert).
free: they run at the same time, independently."""


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
    limits = {
        "cores": cores / max(cores_needed(now, coupling), 1e-9),
        "learner": 1 / max(2 * learner_busy(now, coupling), 1e-9),
        "sums": 1 / round_growth(now.shares.get("reduce", 0.0), actors, strong),
    }
    if coupling != "turns":
        del limits["sums"]
    limit = min(limits, key=lambda name: limits[name])
    if limits[limit] >= 1:
        return Prediction(2 * now.speed, "nothing")
    return Prediction(2 * now.speed * limits[limit], limit)


def cores_needed(now: Measured, coupling: Coupling) -> float:
    """Return D: cores that twice the actors would use if there were enough."""
    if coupling != "free":
        return 2 * now.cores
    learner = min(now.shares.get("learn", 0.0), now.cores)
    return 2 * (now.cores - learner) + learner


def learner_busy(now: Measured, coupling: Coupling) -> float:
    """Return B: the fraction of the time that a learner on which all actors depend is busy."""
    return max(0.0, 1 - now.shares.get("wait", 0.0)) if coupling == "ratio" else 0.0


def round_growth(reduce: float, actors: int, strong: bool) -> float:
    """Return G: how much longer a round takes with twice as many ranks."""
    k = math.log2(2 * actors) / math.log2(actors) if actors > 1 else 1.0
    return 1 - reduce + (2 * k if strong else k) * reduce
