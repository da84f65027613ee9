"""Medians and intervals of repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MIN_FOR_INTERVAL = 6
"""Fewest values with a 95 % interval of the median: 5 give 1 - 2 x 0.5^5 = 94 % at most."""


class Summary(NamedTuple):
    """The median of some values, and an interval around it."""

    median: float
    low: float
    high: float


def kind_of_interval(count: int) -> str:
    """Return the name of the interval that `summarize` computes for so many values."""
    return "95 % interval of the median" if count >= MIN_FOR_INTERVAL else "min..max"


def summarize(values: Sequence[float]) -> Summary:
    """Return the median with its 95 % interval; of fewer than six values, with min and max.

    The interval goes from the k-th smallest to the k-th largest. The median of the distribution
    is below the k-th smallest of n if fewer than k fall below it: P(Binomial(n, 1/2) < k).
    """
    ordered, n = sorted(values), len(values)
    k, below = 1, 1.0  # `below`: 2^n P(Binomial(n, 1/2) < k)
    while n >= MIN_FOR_INTERVAL and below + math.comb(n, k) <= 0.025 * 2**n:
        below += math.comb(n, k)
        k += 1
    return Summary(statistics.median(ordered), ordered[k - 1], ordered[n - k])


def summarize_metrics(repeats: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """Return a summary of each metric over repeats that all have the same metrics."""
    return {name: summarize([repeat[name] for repeat in repeats]) for name in repeats[0]}
