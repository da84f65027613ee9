"""Statistics of seeds: against definitions worked out by hand and by brute force."""

import itertools

import numpy as np
import pytest

from rookery.score_statistics import (
    EXACT_SEEDS,
    estimate,
    interquartile_mean,
    probability_of_improvement,
    resamples,
)

# The score matrices (runs x tasks) with which rliable tests its own metrics.
FOUR_RUNS = np.array([[1, 2], [2, 2], [1, 1], [2, 1]], float)
THREE_RUNS = np.array([[1, 1], [2, 2], [3, 3]], float)


def test_interquartile_mean_of_rliables_toy_data():
    assert interquartile_mean(FOUR_RUNS.flatten()) == pytest.approx(1.5, abs=1e-6)
    assert interquartile_mean(THREE_RUNS.flatten()) == pytest.approx(2, abs=1e-6)
    # 80 values: the 20 lowest and the 20 highest are left out.
    assert interquartile_mean(np.arange(80.0)) == pytest.approx(np.arange(20, 60).mean(), abs=1e-6)


def test_interquartile_mean_leaves_out_outliers():
    assert interquartile_mean(np.array([-1e9, 1, 2, 1e9])) == 1.5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3


def test_interval_of_many_episodes_covers_the_truth():
    # Normal returns around 10: a 95 % interval misses now and then, rarely more than that.
    random = np.random.default_rng(1)
    found = [estimate(random.normal(10, 3, 60)) for _ in range(40)]
    assert 33 <= sum(each.low <= 10 <= each.high for each in found) <= 40
    assert estimate(np.full(20, 3.0)) == (3, 3, 3)


def test_probability_of_improvement_of_rliables_toy_data():
    tasks = zip(FOUR_RUNS.T, THREE_RUNS.T, strict=True)
    found = [probability_of_improvement(ours, theirs) for ours, theirs in tasks]
    assert np.mean(found) == pytest.approx(1 / 3, abs=1e-6)
    assert probability_of_improvement(np.array([3.0]), np.array([1.0, 2])) == 1
    assert probability_of_improvement(np.array([1.0]), np.array([1.0])) == 0.5


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_interval_equals_percentiles_over_every_ordered_resample(count):
    values = np.random.default_rng(count).normal(size=(count, 4))
    draws = itertools.product(range(count), repeat=count)
    means = np.stack([interquartile_mean(values[list(draw)]) for draw in draws])
    low, high = np.quantile(means, [0.025, 0.975], axis=0, method="inverted_cdf")
    found = estimate(values)
    np.testing.assert_allclose(found.low, low, atol=1e-9)
    np.testing.assert_allclose(found.high, high, atol=1e-9)
    np.testing.assert_allclose(found.value, interquartile_mean(values))


def test_resamples_of_many_seeds_are_drawn_at_random_but_always_the_same():
    for count in (EXACT_SEEDS, EXACT_SEEDS + 1, 20):
        indices, weights = resamples(count)
        assert indices.shape[1] == count
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_array_equal(indices, resamples(count)[0])


def test_interval_of_many_seeds_covers_the_true_mean_as_often_as_it_says():
    random = np.random.default_rng(3)
    found = estimate(random.normal(size=(12, 400)))
    covered = ((found.low <= 0) & (found.high >= 0)).mean()
    # The percentile bootstrap of 12 values is known to cover a little less than 95 %.
    assert 0.85 < covered < 0.97
