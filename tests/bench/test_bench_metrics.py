"""Numbers out of printed text."""

from __future__ import annotations

import math

import pytest

from rookery.bench.metrics import at_path, kind_of_interval, measure, printed_json, summarize
from rookery.bench.spec import make_benchmark
from rookery.errors import BadInput

TEXT = "speed: 100\nspeed: 1\nspeed: 2\nspeed: 9\n"


def metrics(data, stdout="", stderr="", derived=None, values=None, duration=2.0):
    values = values or {}
    entry = {"cmd": "x", "data": data, "derived": derived or {}}
    entry["parameters"] = {name: [value] for name, value in values.items()} or None
    benchmark = make_benchmark("a", "spec:1", entry)
    assert benchmark.problem == ""
    return measure(benchmark, stdout, stderr, duration, values)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", 4), ("final", 9), ("min", 1), ("max", 9), ("median", 2), (None, 4)],
)
def test_matches_after_the_warm_up_are_reduced(reduction, expected):
    metric = {"regexp": r"^speed: (\S+)$", "skip": 1, "reduction_type": reduction}
    assert metrics({"speed": metric}, TEXT) == {"speed": expected}


def test_reduction_value_needs_exactly_one_match():
    metric = {"regexp": r"speed: (\d+)", "skip": 3, "reduction_type": "value"}
    assert metrics({"speed": metric}, TEXT) == {"speed": 9}
    with pytest.raises(BadInput, match="speed: 2 matches"):
        metrics({"speed": metric | {"skip": 2}}, TEXT)


def test_both_streams_are_searched():
    found = metrics({"a": {"regexp": r"a=(\d+)", "reduction_type": "final"}}, "a=1", "a=2")
    assert found == {"a": 2}


@pytest.mark.parametrize(
    ("text", "number"),
    [("12,345.5", 12345.5), ("1_000", 1000), ("-2e-3", -0.002), ("+1,234,567", 1234567)],
)
def test_numbers_as_people_print_them(text, number):
    assert metrics({"a": {"regexp": r"a (\S+)"}}, f"a {text}") == {"a": number}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b 1", "a: the regexp .* matches nothing"),
        ("a nan", "a: .*nan"),
        ("a inf", "a: .*inf"),
        ("a -inf", "a: .*inf"),
        ("a 1e999", "a: .*inf"),
        ("a 1,23", "a: .*not a number"),
        ("a x", "a: .*not a number"),
        ("a 1\na nan\na 1", "nan"),
    ],
)
def test_text_without_a_finite_number(text, words):
    with pytest.raises(BadInput, match=words):
        metrics({"a": {"regexp": r"a (\S+)", "reduction_type": "min"}}, text)


@pytest.mark.parametrize("reduction", ["mean", "median"])
def test_sums_of_matches_that_are_too_large(reduction):
    metric = {"regexp": r"a (\S+)", "reduction_type": reduction}
    with pytest.raises(BadInput, match=r"too large|not a finite"):
        metrics({"a": metric}, "a 1e308\na 1e308")


def test_skipping_all_matches_is_an_error_with_both_numbers():
    with pytest.raises(BadInput, match="matches 4 times, and 4 are skipped"):
        metrics({"a": {"regexp": r"speed: (\d+)", "skip": 4}}, TEXT)


def test_a_regexp_group_without_a_match_is_not_a_number():
    with pytest.raises(BadInput, match="not a number"):
        metrics({"a": {"regexp": r"a(?: (\d+))?"}}, "a")


OBJECT = (
    '{"result": {"speed": 5}, "rows": [{"x": 1}, {"x": 2.5}], "bad": null, "t": true, "s": "1"}'
)


@pytest.mark.parametrize(
    ("path", "value"), [("result.speed", 5), ("rows[0].x", 1), ("rows[-1].x", 2.5)]
)
def test_paths_into_json(path, value):
    assert metrics({"a": {"json": path}}, OBJECT) == {"a": value}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("result.sped", 'result.sped not found: no "sped" in result; found speed'),
        ("nothing", 'no "nothing"; found result, rows'),
        ("rows[2].x", r"no .\[2\]. in rows; it has 2 items"),
        ("rows.x", "rows.x not found"),
        ("result[0]", "not found"),
        ("result", "not a number"),
        ("bad", "bad is null"),
        ("t", "t is true"),
        ("s", 's is "1"'),
    ],
)
def test_a_missing_json_path_is_reported_with_what_is_there(path, words):
    with pytest.raises(BadInput, match=words):
        metrics({"a": {"json": path}}, OBJECT)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400])
def test_json_numbers_that_are_not_finite(number):
    with pytest.raises(BadInput, match="a: x is"):
        metrics({"a": {"json": "x"}}, f'{{"x": {number}}}')


def test_json_is_found_among_other_lines():
    printed = 'loading {\n{"x": 1}\n{broken\n{\n  "x": {"y": 2}\n}\nbye\n'
    assert printed_json(printed) == {"x": {"y": 2}}
    assert printed_json("[1, 2]") == [1, 2]
    assert at_path([[1, 2]], "[0][1]") == 2


@pytest.mark.parametrize("printed", ["", "no json", "{broken", "x {}", "[" * 100_000])
def test_no_json_at_all(printed):
    with pytest.raises(BadInput, match="no JSON object"):
        printed_json(printed)


def test_derived_metrics_know_metrics_parameters_and_the_duration():
    derived = {"rate": {"expr": "a * n / duration"}, "twice": {"expr": "2 * rate"}}
    values = {"n": "1e1", "name": "x", "flag": True}
    found = metrics({"a": {"json": "x"}}, '{"x": 4}', derived=derived, values=values)
    assert found == {"a": 4, "rate": 20, "twice": 40}


@pytest.mark.parametrize(
    ("expr", "words"),
    [("1 / a", "rate: .*division by zero"), ("name + 1", "'x', not a number"), ("flag", "True")],
)
def test_undefined_derived_metrics_are_bad_input(expr, words):
    values = {"name": "x", "flag": True}
    with pytest.raises(BadInput, match=words):
        metrics({"a": {"json": "x"}}, '{"x": 0}', derived={"rate": {"expr": expr}}, values=values)


def test_few_repeats_have_their_range():
    assert summarize([3.0]) == (3, 3, 3)
    assert summarize([5, 1, 2]) == (2, 1, 5)
    assert summarize([4, 1, 2, 3, 5]) == (3, 1, 5)
    assert kind_of_interval(5) == "min..max"


@pytest.mark.parametrize("n", [6, 8, 9, 12, 20, 25])
def test_many_repeats_have_the_interval_of_their_median(n):
    """Against the definition: the tightest k-th values that miss the median at most 2.5 % each."""
    low = summarize(list(range(1, n + 1))).low

    def missed(k):
        return sum(math.comb(n, i) for i in range(k)) / 2**n

    assert missed(low) <= 0.025 < missed(low + 1)
    assert summarize(list(range(1, n + 1))).high == n + 1 - low
    assert "95 %" in kind_of_interval(n)


def test_the_interval_of_twenty_by_the_table():
    """The well-known ranks for n = 20 are the 6th and the 15th."""
    assert summarize(list(range(20, 0, -1))) == (10.5, 6, 15)
