"""Statistics of the scores of seeds or episodes (Agarwal et al. 2021): interquartile mean,
bootstrap intervals, probability of improvement."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

EXACT_SEEDS = 8
"""Up to this number of values all resamples are enumerated: 6,435 multisets of eight."""
RESAMPLES = 5_000
"""Random resamples of more values."""
CHUNK = 64
"""Resamples that are computed at once."""
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """An interquartile mean with its bootstrap interval; each an array over points of a curve, or
    a single number."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean of the middle half: a quarter of the values, rounded down, is left out at
    each end. Fewer than four values are all used."""
    count = values.shape[axis]
    cut = count // 4
    ordered = np.sort(values, axis=axis)
    return np.take(ordered, range(cut, count - cut), axis=axis).mean(axis)


def resamples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the resamples of `count` values as indices [resamples, count], and their
    probabilities: all multisets where these are few, else a fixed random draw."""
    if count <= EXACT_SEEDS:
        indices = np.array(list(itertools.combinations_with_replacement(range(count), count)))
        times = np.stack([(indices == i).sum(1) for i in range(count)], axis=1)
        factorials = np.array([math.factorial(i) for i in range(count + 1)])
        # A multiset stands for count! / (t_1! t_2! ...) of the count^count ordered draws.
        weights = factorials[count] / factorials[times].prod(1)
        return indices, weights / count**count
    indices = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    return indices, np.full(RESAMPLES, 1 / RESAMPLES)


def estimate(values: np.ndarray) -> Estimate:
    """Return the interquartile mean over the first axis [seeds, ...] with its percentile
    interval; the interval of one seed is that seed."""
    indices, weights = resamples(len(values))
    chunks = np.array_split(indices, max(1, len(indices) // CHUNK))
    means = np.concatenate([interquartile_mean(values[chunk], axis=1) for chunk in chunks])
    tail = (1 - CONFIDENCE) / 2
    low, high = (weighted_quantile(means, weights, share) for share in (tail, 1 - tail))
    return Estimate(interquartile_mean(values), low, high)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Return the smallest value [values, ...] whose cumulative weight [values] reaches `share`."""
    order = np.argsort(values, axis=0)
    reached = np.cumsum(weights[order], axis=0) >= share - 1e-12
    first = np.expand_dims(reached.argmax(0), 0)
    return np.take_along_axis(np.take_along_axis(values, order, 0), first, 0)[0]


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the probability that a value of `ours` is above one of `theirs`, ties counted as
    half: the Mann-Whitney statistic over its largest value."""
    difference = ours[:, None] - theirs[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)
