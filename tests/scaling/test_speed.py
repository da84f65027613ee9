"""The steady pace of a run, from reports made up by hand, and the predicted one."""

from __future__ import annotations

import pytest

from rookery.errors import RookeryError
from rookery.scaling.speed import Measured, combine_runs, measure_run, predict


def report(seconds, env_steps, updates, env_s=0.5, cpu_percent=100.0, **more):
    """A row of progress.csv."""
    return {
        "env_steps": env_steps,
        "updates": updates,
        "seconds": seconds,
        "env_s": env_s,
        "cpu_percent": cpu_percent,
        **more,
    }


def test_the_first_part_of_a_run_is_left_out():
    rows = [report(0, 0, 4), report(2, 9_000, 5, env_s=2), report(3, 9_100, 10)]
    rows += [report(6, 9_700, 20, env_s=1.5), report(10, 10_500, 30, env_s=2)]
    measured = measure_run(rows)
    # From 3 s, which is 30 % of 10 s: 1,400 steps in 7 s, 3.5 s of them in the environments.
    assert measured.speed == pytest.approx(200)
    assert measured.shares["env"] == pytest.approx(0.5)


def test_reports_before_the_third_update_are_left_out():
    rows = [report(s, 1_000 * s, 0) for s in range(5)]
    rows += [report(5, 5_000, 1), report(6, 5_001, 2)]
    rows += [report(7, 5_100, 3), report(8, 5_200, 4), report(10, 5_400, 5)]
    assert measure_run(rows).speed == pytest.approx(100)


def test_every_column_of_seconds_is_a_share():
    rows = [report(0, 0, 4), report(4, 0, 4, transfer_s=9, wait_s=9)]
    rows += [report(8, 400, 5, transfer_s=1, wait_s=None), report(9, 400, 6, transfer_s=1)]
    shares = measure_run(rows).shares
    assert set(shares) == {"env", "transfer", "wait"}
    assert shares["transfer"] == pytest.approx(2 / 5)
    assert shares["wait"] == 0


def test_cores_in_use_are_weighed_by_time():
    rows = [report(5, 0, 4, cpu_percent=900), report(6, 10, 5, cpu_percent=100)]
    rows += [report(9, 40, 6, cpu_percent=200)]
    assert measure_run(rows).cores == pytest.approx((1 * 1 + 3 * 2) / 4)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "0 updates in 0.0 s"),
        ([report(0, 0, 0), report(1, 8, 9)], "1 reports in 1.0 s"),
        ([report(5, 0, 9), report(5, 0, 9)], "2 reports in 5.0 s"),
        ([report(s, s, 2) for s in range(9)], "2 updates in 8.0 s"),
    ],
)
def test_a_run_too_short_to_measure_says_so(rows, why):
    with pytest.raises(RookeryError, match=f"{why}.*increase --minutes"):
        measure_run(rows)


def test_runs_are_combined_by_the_median_speed():
    runs = [
        Measured(100, {"env": 0.2}, 1.0),
        Measured(400, {"env": 0.4, "wait": 0.3}, 2.0),
        Measured(130, {"env": 0.3}, 1.5),
    ]
    combined = combine_runs(runs)
    assert combined.speed == 130
    assert combined.shares == pytest.approx({"env": 0.3, "wait": 0.1})
    assert combined.cores == pytest.approx(1.5)


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
