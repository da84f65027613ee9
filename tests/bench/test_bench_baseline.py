"""Baselines: what counts as worse, and for whom."""

from __future__ import annotations

import json

import pytest

from rookery.bench.baseline import compare, notes
from rookery.bench.spec import make_benchmark
from rookery.cli.main import main

BENCHMARK = make_benchmark(
    "a",
    "spec:1",
    {
        "cmd": "x",
        "data": {
            "up": {"json": "u", "better": "higher"},
            "down": {"json": "d", "better": "lower"},
            "other": {"json": "o"},
        },
    },
)


def row(parameters=None, result="ok", host="h", **metrics):
    values = parameters or {}
    where = {"host": host, "cores": 2}
    return {"benchmark": "a", "parameters": values, "result": result, "metrics": metrics, **where}


def verdicts(now, then, tolerance=0.1):
    compared = compare([BENCHMARK], [now], [then], tolerance)
    return {each.metric: each.verdict for each in compared}


@pytest.mark.parametrize(
    ("metric", "then", "now", "verdict"),
    [
        ("up", 100, 90, "same"),
        ("up", 100, 89, "regression"),
        ("up", 100, 110, "same"),
        ("up", 100, 111, "improvement"),
        ("down", 100, 110, "same"),
        ("down", 100, 111, "regression"),
        ("down", 100, 89, "improvement"),
        ("up", -100, -111, "regression"),
        ("up", -100, -109, "same"),
        ("down", -100, -89, "regression"),
        ("up", 0, 0, "same"),
        ("up", 0, -1, "regression"),
        ("down", 0, 1, "regression"),
        ("other", 100, 1, "reported"),
    ],
)
def test_verdict_depends_on_direction_and_tolerance(metric, then, now, verdict):
    assert verdicts(row(**{metric: now}), row(**{metric: then})) == {metric: verdict}


def test_the_tolerance_is_a_share_of_the_baseline():
    assert verdicts(row(up=60), row(up=100), 0.5) == {"up": "same"}
    assert verdicts(row(up=99.9), row(up=100), 0.0) == {"up": "regression"}


def test_change_is_relative_to_the_baseline():
    (up,) = compare([BENCHMARK], [row(up=75.0)], [row(up=50.0)], 0.1)
    assert up.change == 0.5
    assert up.line() == "improvement: a: up 75 against 50 (+50.0 %)"
    (zero,) = compare([BENCHMARK], [row(up=75.0)], [row(up=0.0)], 0.1)
    assert zero.change is None


def test_variants_are_matched_by_their_parameters():
    earlier = [row({"n": 1, "m": 2}, up=10), row({"n": 2, "m": 2}, up=20)]
    compared = compare([BENCHMARK], [row({"m": 2, "n": 2}, up=20)], earlier, 0.1)
    assert [(each.baseline, each.verdict) for each in compared] == [(20, "same")]


def test_what_cannot_be_compared_is_noted():
    assert notes([row({"n": 1}, up=1)], []) == ["not in the baseline: a [n=1]"]
    assert notes([row(up=1)], [row(result="failed")]) == ["failed in the baseline: a"]
    assert notes([row(up=1)], [row(down=1)]) == [
        "only on one side: a: down",
        "only on one side: a: up",
    ]
    assert notes([row(up=1)], [row(up=1, host="g")]) == [
        "the baseline was measured on another machine"
    ]
    assert notes([row({"n": 1}, up=1)], [row({"n": 1}, up=1), row({"n": 2}, up=1)]) == [
        "only in the baseline: a [n=2]"
    ]
    assert notes([row(up=1)], [row(up=1)]) == []


SPEC = """
a:
  cmd: echo speed {speed} size 3
  parameters: {n: [1, 2]}
  env: {speed: "%s"}
  data:
    speed: {regexp: 'speed (\\S+)', better: higher}
    size: {regexp: 'size (\\S+)'}
"""


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Runs the spec at a speed; exit status and standard output."""
    monkeypatch.chdir(tmp_path)

    def run(speed, *args):
        (tmp_path / "spec.yaml").write_text(SPEC % speed)
        status = main(["bench", "spec.yaml", *args])
        return status, capsys.readouterr().out

    return run


def test_a_regression_ends_with_status_1(bench, tmp_path):
    then = ("--baseline", "then/benchmark_results.json")
    assert bench(100, "--log-dir", "then")[0] == 0
    assert bench(91, *then)[0] == 0
    assert bench(200, *then)[0] == 0
    status, out = bench(80, *then, "--log-dir", "now")
    assert status == 1
    assert "regression: a [n=1]: speed 80 against 100 (-20.0 %)" in out
    assert "reported: a [n=2]: size 3 against 3" in out
    assert "finished: 2 ok, 0 failed" in out
    kept = json.loads((tmp_path / "now" / "benchmark_results.json").read_text())["baseline"]
    assert (kept["regressions"], kept["tolerance"]) == (2, 0.1)
    assert len(kept["comparisons"]) == 4
    assert bench(80, *then, "--tolerance", "0.25")[0] == 0


def test_json_contains_the_comparison(bench):
    bench(100, "--log-dir", "then")
    status, out = bench(50, "--baseline", "then/benchmark_results.json", "--json")
    assert status == 1
    assert json.loads(out)["baseline"]["comparisons"][0]["verdict"] == "regression"


def test_a_baseline_is_not_overwritten(bench, tmp_path):
    bench(100, "--log-dir", "then")
    before = (tmp_path / "then" / "benchmark_results.json").read_text()
    status, _ = bench(50, "--baseline", "then/benchmark_results.json", "--log-dir", "./then")
    assert status == 2
    assert (tmp_path / "then" / "benchmark_results.json").read_text() == before


@pytest.mark.parametrize("value", ["NaN", "null", '"1"', "true", "[1]", "1" + "0" * 400])
def test_a_baseline_of_no_numbers_is_refused(bench, tmp_path, value):
    row = f'{{"benchmark": "a", "parameters": {{}}, "metrics": {{"speed": {value}}}}}'
    (tmp_path / "b.json").write_text(f'{{"rows": [{row}]}}')
    assert bench(1, "--baseline", "b.json")[0] == 2
