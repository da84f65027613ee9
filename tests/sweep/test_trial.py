"""Score of a trial: the mean over seeds at equal steps."""

from __future__ import annotations

import pytest

from rookery.errors import RookeryError

pytest.importorskip("ray")

from rookery.sweep.trial import (
    Score,
    SeedProgress,
    at_end,
    at_steps,
    passed,
    report_steps,
    rungs,
    value_at,
)


def rows(*pairs):
    return [{"env_steps": steps, "return": value} for steps, value in pairs]


SLOW = rows((100, 10.0), (200, 30.0))
FAST = rows((150, 0.0), (250, 100.0), (400, 200.0))


@pytest.mark.parametrize(
    ("steps", "value"), [(50, None), (100, 10), (150, 20), (200, 30), (999, 30)]
)
def test_value_between_reports_is_interpolated(steps, value):
    assert value_at(SLOW, "return", steps) == value


def test_reports_without_a_value_are_skipped():
    known = rows((100, None), (200, 10.0), (300, None), (400, 30.0))
    assert value_at(known, "return", 300) == 20
    assert value_at(known, "return", 100) is None


def test_seeds_are_compared_at_equal_steps():
    seeds = [SeedProgress(SLOW, is_over=False), SeedProgress(FAST, is_over=False)]
    assert passed(seeds, 200)
    assert not passed(seeds, 201)
    assert at_steps(seeds, "return", 200) == Score(200, 40.0, [30.0, 50.0])
    assert at_steps(seeds, "return", 120) is None  # the second seed has no value by then


def test_ended_run_counts_with_its_last_value():
    seeds = [SeedProgress(SLOW, is_over=True), SeedProgress(FAST, is_over=False)]
    assert passed(seeds, 400)
    assert at_steps(seeds, "return", 400) == Score(400, 115.0, [30.0, 200.0])
    assert at_end(seeds, "return") == Score(400, 115.0, [30.0, 200.0])


def test_missing_score_error_names_the_reason():
    with pytest.raises(RookeryError, match=r'no column "retrun".* Did you mean "return"'):
        at_end([SeedProgress(SLOW, is_over=True)], "retrun")
    with pytest.raises(RookeryError, match='"return" has no value in any report'):
        at_end([SeedProgress(rows((1, None)), is_over=True)], "return")
    with pytest.raises(RookeryError, match="ended at nan"):
        at_end([SeedProgress(rows((1, float("nan"))), is_over=True)], "return")


def test_rungs_grow_by_the_reduction_factor():
    assert rungs(100, 10, 3) == [10, 30, 90]
    assert rungs(90, 10, 3) == [10, 30]
    assert rungs(100, 10, 1.5) == [10, 15, 23, 34, 51, 76]


def test_report_steps_include_the_rungs():
    assert report_steps(100) == list(range(5, 100, 5))
    assert 17 in report_steps(100, [17])
    assert report_steps(3) == [1, 2]
    assert report_steps(1) == []
