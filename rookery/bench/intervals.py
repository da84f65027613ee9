"""What repeats of a measurement amount to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ENOUGH = 6
"""Fewer values have no 95 % interval of their median: 2 x 0.5^5 is above 5 %."""


class Summary(NamedTuple):
    """The median of values, and an interval around it."""

    median: float
    low: float
    high: float


def kind_of_interval(count: int) -> str:
    """What the interval of so many values is."""
    return "95 % interval of the median" if count >= ENOUGH else "min..max"


def summary(values: Sequence[float]) -> Summary:
    """Median with the smallest and largest value; of six or more, with its 95 % interval.

    The interval goes from the k-th smallest to the k-th largest. The median of the distribution
    is below the k-th smallest of n if fewer than k fall below it: P(Binomial(n, 1/2) < k).
    """
    ordered, n = sorted(values), len(values)
    k, below = 1, 1.0  # `below`: 2^n P(Binomial(n, 1/2) < k)
    while n >= ENOUGH and below + math.comb(n, k) <= 0.025 * 2**n:
        below += math.comb(n, k)
        k += 1
    return Summary(statistics.median(ordered), ordered[k - 1], ordered[n - k])


def summaries(repeats: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """A summary of each metric over the repeats, which all have the same."""
    return {name: summary([repeat[name] for repeat in repeats]) for name in repeats[0]}
