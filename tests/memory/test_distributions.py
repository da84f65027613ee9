"""Probabilities and importance weights of windows."""

import numpy as np
import pytest
import torch
from streams import chi_square_fits

from rookery.errors import Diverged
from rookery.memory.distributions import Prioritized, Uniform


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def index(*places):
    return np.array(places, dtype=np.int64)


def counts_of(distribution, size, batches, batch_size, seed=0):
    generator = rng(seed)
    draws = [distribution.draw(batch_size, generator)[0] for _ in range(batches)]
    return np.bincount(np.concatenate(draws), minlength=size)


PRIORITIES = np.array([0.1, 0.5, 1.0, 2.0, 3.0, 7.0, 0.01, 0.3])
PLACES = index(0, 5, 63, 64, 65, 99, 70, 1)


@pytest.mark.parametrize(("alpha", "batch_size"), [(0.4, 32), (0.6, 32), (1.0, 32), (0.6, 1)])
def test_frequencies_follow_the_priorities_to_the_power_alpha(alpha, batch_size):
    distribution = Prioritized(100, alpha, 0.4)
    distribution.put(PLACES, PRIORITIES)
    draws = 12_800
    counts = counts_of(distribution, 100, draws // batch_size, batch_size)
    expected = draws * PRIORITIES**alpha / (PRIORITIES**alpha).sum()
    assert counts.sum() == counts[PLACES].sum() == draws
    assert chi_square_fits(counts[PLACES], expected)
    assert not chi_square_fits(counts[PLACES], np.full(8, draws / 8))


def test_frequencies_follow_new_priorities():
    distribution = Prioritized(100, 0.6, 0.4)
    distribution.put(PLACES, PRIORITIES)
    distribution.reweigh(PLACES[:4], np.array([9.0, 0.2, 4.0, 4.0]))
    now = np.concatenate([[9.0, 0.2, 4.0, 4.0], PRIORITIES[4:]]) ** 0.6
    counts = counts_of(distribution, 100, 1_000, 32)
    assert chi_square_fits(counts[PLACES], 32_000 * now / now.sum())
    assert distribution.count == 8


@pytest.mark.parametrize(("done", "beta"), [(0.0, 0.4), (0.5, 0.7), (1.0, 1.0), (1.2, 1.0)])
def test_beta_rises_over_the_run(done, beta):
    distribution = Prioritized(100, 0.6, 0.4, beta_end=1.0)
    distribution.put(PLACES, PRIORITIES)
    distribution.set_progress(done)
    drawn, weight = distribution.draw(100, rng())
    probability = distribution.tree.weights[drawn] / distribution.tree.total
    np.testing.assert_allclose(weight, (8 * probability) ** -beta, rtol=1e-9)


def test_beta_is_constant_without_an_end():
    distribution = Prioritized(100, 0.6, 0.4)
    distribution.set_progress(0.5)
    assert distribution.beta == 0.4


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_correct_for_the_probability(beta):
    distribution = Prioritized(100, 0.6, beta)
    distribution.put(PLACES, PRIORITIES)
    distribution.drop(PLACES[:2])
    kept = PRIORITIES[2:] ** 0.6
    by_hand = {
        place: (6 * p / kept.sum()) ** -beta for place, p in zip(PLACES[2:], kept, strict=True)
    }
    drawn, weight = distribution.draw(500, rng())
    assert set(drawn.tolist()) == set(PLACES[2:].tolist())
    expected = [by_hand[place] for place in drawn]
    np.testing.assert_allclose(weight, expected, rtol=1e-12)


def test_batches_are_stratified():
    # Of 64 equal windows a batch of 64 draws each once.
    distribution = Prioritized(64, 1.0, 0.4)
    distribution.put(np.arange(64), np.ones(64))
    assert sorted(distribution.draw(64, rng())[0].tolist()) == list(range(64))


def test_a_priority_of_0_is_still_drawn():
    distribution = Prioritized(10, 0.5, 0.4)
    distribution.put(index(2, 3), np.array([0.0, 1.0]))
    # The weight sqrt(1e-6) is a thousandth of the total, about 1.
    counts = counts_of(distribution, 10, 300, 1_000)
    assert counts.sum() == counts[2] + counts[3] == 300_000
    assert 200 < counts[2] < 400


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_non_finite_priority_raises_diverged(wrong):
    distribution = Prioritized(10, 0.6, 0.4)
    distribution.put(index(1, 2), np.ones(2))
    with pytest.raises(Diverged, match="priority"):
        distribution.reweigh(index(1, 2), np.array([1.0, wrong]))
    with pytest.raises(Diverged, match="priority"):
        distribution.put(index(3), np.array([wrong]))
    distribution.tree.check()
    assert distribution.tree.total == 2.0


def test_new_windows_get_the_largest_priority_so_far():
    distribution = Prioritized(10, 0.5, 0.4)
    distribution.put(index(0), None)
    assert distribution.tree.weights[0] == 1.0
    distribution.reweigh(index(0), np.array([16.0]))
    distribution.put(index(1), None)
    distribution.reweigh(index(0, 1), np.array([0.25, 0.25]))
    distribution.put(index(2), None)
    distribution.put(index(3), np.array([100.0]))
    distribution.put(index(4), None)
    assert distribution.tree.weights[:5].tolist() == [0.5, 0.5, 4.0, 10.0, 10.0]


def test_dropped_windows_are_never_drawn_again():
    distribution = Prioritized(200, 0.6, 0.4)
    distribution.put(np.arange(200), np.linspace(0, 5, 200))
    distribution.drop(np.arange(0, 200, 2))
    counts = counts_of(distribution, 200, 200, 100)
    assert not counts[::2].any()
    assert counts[1::2].all()


def test_uniform_draws_all_windows_equally_often():
    distribution = Uniform(4, 100)
    present = np.flatnonzero(np.random.default_rng(0).random(400) < 0.6)
    distribution.put(present, None)
    counts = counts_of(distribution, 400, 500, 64)
    assert counts.sum() == counts[present].sum() == 32_000
    assert chi_square_fits(counts[present], np.full(len(present), 32_000 / len(present)))


def test_uniform_draws_equally_often_from_an_almost_empty_memory():
    lanes, starts = 5, 1_000_000
    distribution = Uniform(lanes, starts)
    present = np.concatenate([lane * starts + np.arange(3 + lane) for lane in range(lanes)])
    distribution.put(present, None)
    drawn, weight = distribution.draw(25_000, rng())
    places, counts = np.unique(drawn, return_counts=True)
    assert places.tolist() == present.tolist()
    assert chi_square_fits(counts, np.full(25, 1_000.0))
    assert weight.tolist() == [1.0] * 25_000


def test_uniform_finds_the_only_window():
    distribution = Uniform(2, 50_000)
    distribution.put(np.arange(100_000), None)
    distribution.drop(np.delete(np.arange(100_000), 70_000))
    assert distribution.count == 1
    assert distribution.draw(5, rng())[0].tolist() == [70_000] * 5


def test_uniform_draws_from_the_last_place_of_every_lane():
    distribution = Uniform(3, 7)
    distribution.put(index(6, 13, 20), None)
    counts = counts_of(distribution, 21, 10, 300)
    assert chi_square_fits(counts[[6, 13, 20]], np.full(3, 1_000.0))


@pytest.mark.parametrize("make", [lambda: Uniform(5, 40), lambda: Prioritized(200, 0.6, 0.4)])
def test_windows_are_counted_once(make):
    distribution = make()
    random = np.random.default_rng(0)
    present = set()
    for _ in range(500):
        some = random.choice(200, random.integers(0, 30), replace=False)
        if random.random() < 0.5:
            distribution.put(some, random.choice([0.0, 1.0, 3.0], len(some)))
            present |= set(some.tolist())
        else:
            distribution.drop(some)
            present -= set(some.tolist())
        assert distribution.count == len(present)
        if present:
            assert set(distribution.draw(50, rng())[0].tolist()) <= present


@pytest.mark.parametrize("make", [lambda: Uniform(1, 50), lambda: Prioritized(50, 0.6, 0.4)])
def test_the_generator_decides_what_is_drawn(make):
    distribution = make()
    distribution.put(np.arange(50), None)
    draws = [distribution.draw(30, rng(seed))[0].tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
