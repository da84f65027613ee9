"""Figures of another study beside one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.errors import BadInput
from rookery.scaling.tables import read_reference

TETRIS = Path(__file__).parents[2] / "benchmarks" / "tetris_reference.csv"
HEAD = "series,environments,threads,steps_per_second\n"


def own(actors, envs, speed=None):
    row = {"label": f"{actors}-{envs}", "actors": actors, "envs": envs}
    return row if speed is None else {**row, "steps_per_second": speed}


def test_points_meet_by_environments_and_threads(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text(HEAD + "cpu,1,1,10\ncpu,4,4,20\ngpu,4,2,40\n")
    reference = read_reference(str(file), threads=2)
    rows = [own(1, 2, 50.0), own(2, 2, 60.0), own(4, 2)]
    # 2 actors of 2 environments and 2 threads: 4 environments, 4 threads.
    assert reference.table(rows).splitlines()[1:] == [
        "point  here           cpu   gpu",
        "2-2    50.0             -     -",
        "4-4    60.0  20.0 (3.0 x)     -",
        "1-1       -          10.0     -",
        "4-2       -             -  40.0",
    ]
    told = reference.to_dict(rows)
    assert told["labels"] == {"1-2": "2-2", "2-2": "4-4", "4-2": "8-8"}
    assert [point["label"] for point in told["series"]["cpu"]] == ["1-1", "4-4"]


def test_the_tetris_figures_are_the_published_ones():
    cpu, gpu = read_reference(str(TETRIS), 1).series.values()
    told = {point["label"]: point["steps_per_second"] for point in cpu}
    assert told == {"1-1": 11.3, "2-2": 19.3, "4-4": 30.2, "6-6": 33.8, "8-8": 33.2}
    told = {point["label"]: point["steps_per_second"] for point in gpu}
    assert told == {"1-4": 34.2, "2-4": 39.1, "4-4": 42.2, "8-4": 43.5}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be CSV with the columns series, environments, threads, steps_per_second"),
        ("series,speed\na,3\n", "must be CSV with the columns"),
        (HEAD + "a,1,1,5\na,two,1,5\n", r"line 3: .* must be positive numbers, got two, 1, 5"),
        (HEAD + "a,1,0,5\n", r"line 2: .* got 1, 0, 5"),
        (HEAD + "a,1\n", r"line 2: .* got 1, None, None"),
    ],
)
def test_a_malformed_reference_file_is_refused_with_its_line(text, complaint, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        read_reference(str(file), 1)
    with pytest.raises(BadInput, match=r"reference: .*none\.csv cannot be read: No such file"):
        read_reference(str(tmp_path / "none.csv"), 1)
