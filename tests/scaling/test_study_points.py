"""What a list of points means on a weak and on a strong study."""

from __future__ import annotations

import pytest

from rookery.errors import BadInput
from rookery.scaling.study import Point, parse_points, plan_studies, unique_points


def test_weak_points_are_taken_as_written():
    points = parse_points("1-8, 2-8,4-16")
    assert plan_studies(points, "weak") == {"weak": [Point(1, 8), Point(2, 8), Point(4, 16)]}
    assert Point(4, 16).label == "4-16"


def test_strong_points_share_out_their_environments():
    studies = plan_studies(parse_points("1-8,2-8,8-8"), "strong")
    assert studies == {"strong": [Point(1, 8), Point(2, 4), Point(8, 1)]}


def test_both_studies_run_what_they_share_once():
    studies = plan_studies(parse_points("1-8,2-8"), "both")
    assert list(studies) == ["weak", "strong"]
    assert [point.label for point in unique_points(studies)] == ["1-8", "2-8", "2-4"]


@pytest.mark.parametrize("text", ["", "2", "0-8", "2-0", "a-b", "1-8,", "1-8;2-8", "2x8", "-1-8"])
def test_a_malformed_point_is_refused_by_name(text):
    with pytest.raises(BadInput, match=r"ACTORS-ENVS,\.\.\. such as 1-8,2-8,4-8, got"):
        parse_points(text)


def test_a_duplicate_point_is_refused_by_name():
    with pytest.raises(BadInput, match="2-8 is given twice"):
        parse_points("1-8,2-8,2-8")


def test_strong_points_must_divide():
    with pytest.raises(BadInput, match="3-8 cannot divide 8 environments evenly among 3 actors"):
        plan_studies(parse_points("1-8,3-8"), "strong")
    assert plan_studies(parse_points("1-8,3-8"), "weak")


def test_strong_points_have_one_total():
    with pytest.raises(BadInput, match="same number of environments at every point, got 8, 16"):
        plan_studies(parse_points("1-16,2-8"), "strong")


def test_twice_the_actors():
    assert Point(2, 8).doubled("weak") == Point(4, 8)
    assert Point(2, 8).doubled("strong") == Point(4, 4)
    assert Point(8, 1).doubled("strong") is None
