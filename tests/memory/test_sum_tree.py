"""Draws of the sum tree follow the weights, and its sums do not drift."""

import itertools

import numpy as np
import pytest
from streams import chi_square_fits

from rookery.memory.distributions import FAN, WIDEST_TOP, SumTree

LARGE = 64 * 32_768 + 1
SIZES = [1, FAN - 1, FAN, FAN + 1, 63, 64, 65, 100_000, LARGE]
ALMOST_1 = np.nextafter(1.0, 0.0)


def a_tree(weights):
    """Return a tree of these weights; setting one place per node updates all sums."""
    tree = SumTree(len(weights))
    weights = np.asarray(weights, float)
    tree.levels[0][: len(weights)] = weights
    tree.set(np.arange(0, len(weights), FAN), weights[::FAN])
    return tree


def random_weights(size, seed=0, empty=0.5):
    """Return weights over twelve orders of magnitude, some of them 0."""
    rng = np.random.default_rng(seed)
    return 10.0 ** rng.uniform(-6, 6, size) * (rng.random(size) >= empty)


@pytest.mark.parametrize("size", SIZES)
def test_the_top_level_is_at_most_widest_top_wide(size):
    lengths = [len(level) for level in SumTree(size).levels]
    assert lengths[-1] <= WIDEST_TOP
    assert len(lengths) >= 2
    for below, above in itertools.pairwise(lengths):
        assert below % FAN == 0
        assert below // FAN <= above < below // FAN + FAN
    assert len(SumTree(LARGE).levels) >= 3


@pytest.mark.parametrize("size", SIZES)
def test_the_total_is_the_sum(size):
    weights = random_weights(size, empty=0)
    tree = a_tree(weights)
    tree.check()
    assert np.array_equal(tree.weights, weights)
    assert tree.total == pytest.approx(np.sum(weights), rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_integer_weights_are_drawn_exactly(size):
    # Sums of small integers are exact, so each place must have exactly its part of the total.
    weights = np.random.default_rng(size).integers(0, 3, size).astype(float)
    weights[-1] = 2
    tree = a_tree(weights)
    units = np.repeat(np.arange(size), weights.astype(int))  # the owner of each unit of weight
    total = len(units)
    picked = np.unique(np.linspace(0, total - 1, 5_000).astype(int))
    for within in (0.001, 0.5, 0.999):
        assert np.array_equal(tree.draw((picked + within) / total), units[picked])


def test_draws_follow_the_weights():
    weights = np.array([1, 2, 3, 4, 0, 10, 0.5, 0.25, 79.25] + [0] * 100 + [5, 5, 5, 5], float)
    tree = a_tree(weights)
    draws = tree.draw(np.random.default_rng(0).random(200_000))
    present = weights > 0
    counts = np.bincount(draws, minlength=len(weights))
    assert not counts[~present].any()
    assert chi_square_fits(counts[present], 200_000 * weights[present] / weights.sum())
    assert not chi_square_fits(counts[present][::-1], 200_000 * weights[present] / weights.sum())


def test_draws_follow_the_weights_through_several_levels():
    weights = np.zeros(LARGE)
    places = np.array([0, 63, 64, 4_095, 4_096, 1_000_000, 2_097_151, 2_097_152])
    weights[places] = [1, 2, 3, 4, 5, 6, 7, 8]
    draws = a_tree(weights).draw(np.random.default_rng(1).random(100_000))
    counts = np.bincount(draws, minlength=LARGE)[places]
    assert counts.sum() == 100_000
    assert chi_square_fits(counts, 100_000 * weights[places] / 36)


def test_setting_all_places_at_once_sums_them_all():
    tree = SumTree(5_000)
    weights = random_weights(5_000)
    tree.set(np.arange(5_000), weights)
    tree.check()
    assert np.array_equal(tree.weights, weights)


def test_a_hundred_thousand_sets_leave_no_drift():
    rng = np.random.default_rng(2)
    size = 5_000
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(10_000):
        index = rng.integers(size, size=10)
        new = 10.0 ** rng.uniform(-12, 12, 10) * (rng.random(10) > 0.2)
        tree.set(index, new)
        for place, weight in zip(index, new, strict=True):
            weights[place] = weight
    tree.check()
    assert np.array_equal(tree.weights, weights)
    fresh = a_tree(weights)
    for level, again in zip(tree.levels, fresh.levels, strict=True):
        assert np.array_equal(level, again)  # bit for bit
    tree.set(np.arange(size), 0.0)
    assert tree.total == 0.0


def test_sums_of_several_levels_do_not_drift():
    rng = np.random.default_rng(3)
    tree = SumTree(LARGE)
    for _ in range(100):
        tree.set(rng.integers(LARGE, size=1_000), 10.0 ** rng.uniform(-12, 12, 1_000))
    tree.check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_a_place_of_weight_0_is_never_drawn(size, seed):
    weights = random_weights(size, seed, empty=0.7)
    weights[size // 2] = 1.0
    boundaries = np.cumsum(weights)[:: max(1, size // 10_000)] / weights.sum()
    at = np.concatenate([[0.0, ALMOST_1, 0.5], boundaries, np.linspace(0, 1, 999)])
    at = np.concatenate([at, np.nextafter(at, 0), np.nextafter(at, 1)])
    draws = a_tree(weights).draw(at[(at >= 0) & (at < 1)])
    assert draws.min() >= 0
    assert draws.max() < size
    assert (weights[draws] > 0).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_only_place_with_weight_is_drawn_at_every_fraction(size, place):
    only = {"first": 0, "middle": size // 2, "last": size - 1}[place]
    tree = SumTree(size)
    tree.set(np.array([only]), 1e-9)
    at = np.array([0.0, np.nextafter(0.0, 1.0), 0.3, 0.5, ALMOST_1])
    assert tree.draw(at).tolist() == [only] * 5


def test_fractions_0_and_1_draw_the_first_and_last_place_with_weight():
    tree = a_tree([0, 0, 0.1, 0.7, 0, 0.2, 0])
    # The last part of a stratified batch, (B - 1 + jitter) / B, may be rounded up to 1.
    assert tree.draw(np.array([0.0, ALMOST_1, 1.0])).tolist() == [2, 5, 5]


def test_for_a_repeated_place_the_last_weight_counts():
    tree = SumTree(200)
    tree.set(np.array([7, 150, 7, 7, 150]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    tree.check()
    assert (tree.weights[7], tree.weights[150], tree.total) == (4.0, 5.0, 9.0)


def test_a_scalar_weight_is_set_at_all_places():
    tree = SumTree(100)
    tree.set(np.array([3, 4, 5]), 2.0)
    tree.set(np.array([], dtype=np.int64), 9.0)
    assert tree.total == 6.0


def test_check_finds_a_wrong_sum_and_a_negative_weight():
    tree = a_tree([1, 2, 3])
    tree.levels[0][1] = 2.5
    with pytest.raises(AssertionError, match="sum"):
        tree.check()
    tree.levels[0][1] = -1
    with pytest.raises(AssertionError, match="negative"):
        tree.check()
