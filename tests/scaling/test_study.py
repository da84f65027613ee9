"""Points by turns, their rows, and how rows are shown."""

from __future__ import annotations

import csv
import io

import pytest

from rookery.errors import RookeryError
from rookery.runs.files import aligned
from rookery.scaling.speed import Measured
from rookery.scaling.study import Point, Study, parse_points, plan_studies
from rookery.scaling.tables import scaling_csv, tables


def study_of(text, mode="weak", rounds=3):
    return Study(plan_studies(parse_points(text), mode), rounds, cores=2, coupling="free")


def speeds(table, shares=None, cores=0.1):
    """A measure that looks speeds up: a list for each point, one a round."""
    return lambda point, number: Measured(
        table[point.label][number - 1], shares or {"env": 0.9, "learn": 0.05}, cores
    )


def carry_out(study, measure):
    kept = []
    study.run_rounds(measure, lambda: kept.append(study.results()))
    return kept


def test_points_take_turns_in_every_round():
    order = []

    def measure(point, number):
        order.append((point.label, number))
        return Measured(1.0, {}, 1.0)

    kept = carry_out(study_of("1-8,2-8,4-8", rounds=2), measure)
    assert order == [(label, n) for n in (1, 2) for label in ("1-8", "2-8", "4-8")]
    assert len(kept) == 6


def test_rows_have_speed_up_over_the_first_point_and_the_ideal():
    study = study_of("2-8,4-8,8-8")
    carry_out(study, speeds({"2-8": [90, 100, 200], "4-8": [180] * 3, "8-8": [300, 320, 310]}))
    first, second, third = study.rows("weak")
    assert (first["steps_per_second"], first["min"], first["max"]) == (100, 90, 200)
    assert [row["speed_up"] for row in (first, second, third)] == pytest.approx([1, 1.8, 3.1])
    assert [row["ideal"] for row in (first, second, third)] == [1, 2, 4]
    assert [row["efficiency"] for row in (first, second, third)] == pytest.approx([1, 0.9, 0.775])
    assert first["percent"] == pytest.approx({"env": 90, "learn": 5})


def test_a_prediction_is_in_the_row_of_the_point_it_is_for():
    study = study_of("1-8,2-8,8-8", rounds=1)
    carry_out(study, speeds({"1-8": [100], "2-8": [190], "8-8": [700]}))
    rows = study.rows("weak")
    assert [row["predicted"] for row in rows] == [None, 200, None]
    assert [row["twice"]["label"] for row in rows] == ["2-8", "4-8", "16-8"]
    assert [row["twice"]["steps_per_second"] for row in rows] == [200, 380, 1_400]
    assert "predicted at 16-8: 1,400 steps/s (no limit)" in tables(study.results())


def test_on_a_strong_study_twice_the_actors_have_half_of_the_environments():
    study = study_of("1-8,2-8", "both", rounds=1)
    carry_out(study, speeds({"1-8": [100], "2-8": [190], "2-4": [150]}))
    weak, strong = study.rows("weak"), study.rows("strong")
    assert [row["label"] for row in strong] == ["1-8", "2-4"]
    assert [row["speed_up"] for row in strong] == pytest.approx([1, 1.5])
    assert [row["predicted"] for row in strong] == [None, 200]
    assert [row["speed_up"] for row in weak] == pytest.approx([1, 1.9])


def test_a_measured_point_is_not_predicted_below_the_table():
    study = study_of("1-2,2-2", "strong", rounds=1)
    carry_out(study, speeds({"1-2": [100], "2-1": [150]}))
    assert study.rows("strong")[0]["twice"]["label"] == "2-1"
    assert "predicted at" not in tables(study.results())


def test_strong_predictions_are_those_of_a_strong_study():
    study = Study({"strong": [Point(2, 4)]}, 1, cores=8, coupling="turns")
    carry_out(study, lambda point, number: Measured(1_200, {"reduce": 0.2}, 2.0))
    assert study.rows("strong")[0]["twice"]["steps_per_second"] == pytest.approx(1_500)


def fails_at(label, number, table):
    def measure(point, n):
        if point.label == label and n == number:
            raise RookeryError("the pole broke")
        return speeds(table)(point, n)

    return measure


def test_a_point_that_fails_says_why_and_the_rest_goes_on():
    study = study_of("1-8,2-8", rounds=3)
    carry_out(study, fails_at("1-8", 2, {"1-8": [100, 0, 7], "2-8": [150, 160, 170]}))
    first, second = study.rows("weak")
    assert first["failure"] == "the pole broke"
    assert first["speeds"] == [100]  # not run again
    assert second["speeds"] == [150, 160, 170]
    assert study.status == "failed"
    assert "1-8 failed after 1 good runs: the pole broke" in tables(study.results())


def test_without_the_first_point_the_next_one_is_the_base():
    study = study_of("1-8,2-8,4-8", rounds=1)
    carry_out(study, fails_at("1-8", 1, {"2-8": [200], "4-8": [300]}))
    rows = study.rows("weak")
    assert "speed_up" not in rows[0]
    assert [row["speed_up"] for row in rows[1:]] == pytest.approx([1, 1.5])
    assert rows[2]["ideal"] == 2
    assert "failed" in tables(study.results()).splitlines()[2]


def test_an_interrupt_keeps_what_is_finished():
    study = study_of("1-8,2-8", rounds=2)

    def measure(point, number):
        if number == 2:
            raise KeyboardInterrupt
        return Measured(50.0 * point.actors, {}, 1.0)

    assert len(carry_out(study, measure)) == 2
    assert study.status == "interrupted"
    assert [row["speeds"] for row in study.rows("weak")] == [[50], [100]]


def test_nothing_measured_can_still_be_shown():
    study = study_of("1-8,2-8")
    assert study.status == "finished"
    assert tables(study.results()).count("-8") == 2
    assert len(scaling_csv(study.results()).splitlines()) == 3


def test_tables_line_up():
    assert aligned([["point", "x"], ["1-8", "1,000"]]) == ["point      x", "1-8    1,000"]
    study = study_of("1-8,2-8", rounds=2)
    carry_out(study, speeds({"1-8": [1_000, 1_100], "2-8": [2_000, 2_200]}))
    shown = tables(study.results())
    assert "1,050  (1,000..1,100)" in shown
    assert "2,100  (2,000..2,200)      2.00      2       100 %      2,100" in shown
    assert ["2-8", "90.0", "5.0", "0.10"] in [line.split() for line in shown.splitlines()]


def test_the_csv_has_a_row_for_each_point_of_each_study():
    study = study_of("1-8,2-8", "both", rounds=1)
    carry_out(study, fails_at("2-8", 1, {"1-8": [100], "2-4": [150]}))
    rows = list(csv.DictReader(io.StringIO(scaling_csv(study.results()))))
    assert [(row["study"], row["label"]) for row in rows] == [
        *(("weak", "1-8"), ("weak", "2-8")),
        *(("strong", "1-8"), ("strong", "2-4")),
    ]
    assert rows[1]["failure"] == "the pole broke"
    assert rows[1]["steps_per_second"] == ""
    assert float(rows[3]["efficiency"]) == pytest.approx(0.75)
    assert float(rows[3]["predicted_steps_per_second"]) == pytest.approx(200)
    assert float(rows[3]["env_percent"]) == pytest.approx(90)
    assert rows[0]["twice_limit"] == "nothing"
