"""The steady pace of a run, from reports made up by hand."""

from __future__ import annotations

import pytest

from rookery.errors import RookeryError
from rookery.scaling.measure import Measured, combine_runs, measure_run


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
