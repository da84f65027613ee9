"""Speed at twice the actors, worked out by hand."""

from __future__ import annotations

import pytest

from rookery.scaling.measure import Measured
from rookery.scaling.predict import predict


def test_actors_that_sleep_double_the_speed():
    # 0.3 cores, 0.1 of them the learner's: twice the actors use 0.2 + 0.2 + 0.1 of 2.
    now = Measured(190, {"env": 0.95, "learn": 0.1}, 0.3)
    assert predict(now, 4, cores=2, coupling="free") == (380, "nothing")


def test_actors_that_compute_share_the_cores_with_the_learner():
    # One actor and the learner have a core each; two and the learner get 2/3 of a core each.
    now = Measured(300, {"env": 1.0, "learn": 1.0}, 2.0)
    predicted = predict(now, 1, cores=2, coupling="free")
    assert predicted.speed == pytest.approx(2 * 300 * 2 / 3)
    assert predicted.limit == "cores"


def test_a_learner_with_fixed_samples_per_step_needs_twice_the_cores():
    now = Measured(100, {"learn": 0.9, "wait": 0.9}, 1.5)
    # 2 x 1.5 cores wanted against 2 x 0.6 + 0.9.
    assert predict(now, 1, 2, "ratio").speed == pytest.approx(200 * 2 / 3)
    assert predict(now, 1, 2, "free").speed == pytest.approx(200 * 2 / 2.1)


def test_one_learner_with_fixed_samples_per_step_limits_the_speed():
    # Busy for 80 % of the time, it has room for 1 / 0.8 of the present work.
    now = Measured(100, {"learn": 0.5, "wait": 0.2}, 0.5)
    predicted = predict(now, 2, cores=8, coupling="ratio")
    assert predicted.speed == pytest.approx(125)
    assert predicted.limit == "learner"
    assert predict(now, 2, cores=8, coupling="free").speed == 200


def test_sums_over_ranks_grow_with_the_depth_of_their_tree():
    # 2 ranks to 4: log2 from 1 to 2, so the 20 % become 40 % of what a round took.
    now = Measured(1_200, {"env": 0.5, "learn": 0.3, "reduce": 0.2}, 2.0)
    predicted = predict(now, 2, cores=8, coupling="turns")
    assert predicted.speed == pytest.approx(2_400 / 1.2)
    assert predicted.limit == "sums"
    # 4 to 8: 2 to 3.
    assert predict(now, 4, 8, "turns").speed == pytest.approx(2_400 / 1.1)


def test_on_a_strong_study_sums_have_half_of_the_work_between_them():
    # A round of 0.8 work and 0.2 sums has 0.4 and 0.4 with four ranks instead of two.
    now = Measured(1_200, {"reduce": 0.2}, 2.0)
    assert predict(now, 2, 8, "turns", strong=True).speed == pytest.approx(1_200 / 0.8)


def test_from_one_rank_all_reduce_is_predicted_not_to_grow():
    now = Measured(500, {"reduce": 0.1}, 1.0)
    assert predict(now, 1, 8, "turns") == (1_000, "nothing")
    assert predict(now, 1, 8, "turns", strong=True).speed == pytest.approx(1_000 / 1.1)


def test_ranks_that_fill_the_cores_gain_nothing():
    now = Measured(800, {"env": 0.6, "learn": 0.4}, 2.0)
    predicted = predict(now, 2, cores=2, coupling="turns")
    assert predicted.speed == pytest.approx(800)
    assert predicted.limit == "cores"


def test_the_tightest_limit_is_reported():
    now = Measured(100, {"wait": 0.3}, 1.5)
    assert predict(now, 2, cores=2, coupling="ratio") == (pytest.approx(200 * 2 / 3), "cores")
    assert predict(now, 2, cores=4, coupling="ratio") == (pytest.approx(200 / 1.4), "learner")
