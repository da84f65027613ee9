"""How fast twice the actors would be, from where the time of the present ones goes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from rookery.scaling.measure import Measured

Coupling = Literal["turns", "ratio", "free"]
"""How the learner goes with the actors: in turn with them (serial, ranks); beside them, a fixed
number of samples for each step (threads with samples_per_insert); beside them, for itself."""


class Prediction(NamedTuple):
    """A speed, and what keeps it from being twice the present one."""

    speed: float
    limit: str


def predict(
    now: Measured, actors: int, cores: int, coupling: Coupling, strong: bool = False
) -> Prediction:
    """Speed at twice the actors:

        S' = 2 S min(1, C / D, 1 / 2B, 1 / G)

    S: speed now. C: cores of the machine. D: cores that twice the actors would use, from those
    in use now, U, of which the learner has L (its share of time in updates, a core's worth):
    2U, but 2(U - L) + L if the learner goes for itself. Whoever sleeps or waits uses none,
    and whoever computes shares what there is evenly.

    B: the part of the time that the learner is busy (all that it does not wait), if every step
    obliges it to a number of samples; there is one learner, so it can do 1 / B of the present
    work. 0 if the learner goes for itself, or each actor brings its own.

    G: how much longer a round takes if sums over ranks take a part R of it now: 1 - R + k R,
    k = log2(2N) / log2(N) for N ranks, 1 from a single one; twice that on a strong study,
    where a round has as many sums for half of the work. Without ranks there are no sums.
    """
    limits = {
        "cores": cores / max(demand(now, coupling), 1e-9),
        "learner": 1 / max(2 * learner_busy(now, coupling), 1e-9),
        "sums": 1 / growth(now.shares.get("reduce", 0.0), actors, strong),
    }
    if coupling != "turns":
        del limits["sums"]
    limit = min(limits, key=lambda name: limits[name])
    if limits[limit] >= 1:
        return Prediction(2 * now.speed, "nothing")
    return Prediction(2 * now.speed * limits[limit], limit)


def demand(now: Measured, coupling: Coupling) -> float:
    """D: cores that twice the actors would use if there were enough."""
    if coupling != "free":
        return 2 * now.cores
    learner = min(now.shares.get("learn", 0.0), now.cores)
    return 2 * (now.cores - learner) + learner


def learner_busy(now: Measured, coupling: Coupling) -> float:
    """B: the part of the time that the one learner all actors depend on is busy."""
    return max(0.0, 1 - now.shares.get("wait", 0.0)) if coupling == "ratio" else 0.0


def growth(reduce: float, actors: int, strong: bool) -> float:
    """G: how much longer a round takes when twice as many ranks sum."""
    k = math.log2(2 * actors) / math.log2(actors) if actors > 1 else 1.0
    return 1 - reduce + (2 * k if strong else k) * reduce
