"""Choosers of points: random, grid and Optuna."""

from __future__ import annotations

import numpy as np
import pytest
import sweeps

from rookery.sweep.points import Grid, Optuna, Random, make_chooser
from rookery.sweep.space import Choice, Range

SPACE = {"a": Range(1e-5, 1e-2, log=True), "b": Choice((1, 2))}


def test_random_points_depend_on_the_seed_and_the_number():
    first, again, other = Random(SPACE, 1), Random(SPACE, 1), Random(SPACE, 2)
    drawn = [first.point(number, []) for number in (1, 2, 3)]
    assert [again.point(number, []) for number in (3, 2, 1)] == drawn[::-1]
    assert len({point["a"] for point in drawn}) == 3
    assert other.point(1, []) != drawn[0]


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_no_point_is_tried_twice(search):
    choices = {"algo.gamma": "choice:0.9,0.95,0.99", "algo.lam": "choice:0.9,0.95"}
    chooser = make_chooser(sweeps.spec(choices, search=search, samples=6), [])
    tried = []
    for number in range(1, 7):
        tried.append(chooser.point(number, tried))
    assert len({(point["algo.gamma"], point["algo.lam"]) for point in tried}) == 6


def test_grid_returns_none_after_its_last_point():
    grid = Grid({"b": Choice((1, 2))})
    assert [grid.point(number, []) for number in (1, 2, 3)] == [{"b": 1}, {"b": 2}, None]


def score_of(values):
    """Return a score that is best at a learning rate of 1e-3 and one layer of 32."""
    distance = abs(np.log10(values["algo.learning_rate"]) + 3)
    return -distance - (values["net.hidden"] != [32])


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_optuna_proposes_better_points_over_time(mode, sign, tmp_path):
    folder = sweeps.folder(tmp_path, search="optuna", mode=mode, samples=60)
    optuna = Optuna(folder.spec, [])
    for number in range(1, 61):
        values = optuna.point(number, [])
        optuna.learn(sweeps.add_ended_trial(folder, values, sign * score_of(values)))
    scores = [sign * record.score for record in folder.records]
    assert np.mean(scores[-20:]) > np.mean(scores[:10]) + 0.4


def test_optuna_uses_earlier_trials_after_a_resume(tmp_path):
    folder = sweeps.folder(tmp_path, search="optuna", samples=60)
    random = Random(folder.spec.dimensions, 1)
    for number in range(1, 31):
        values = random.point(number, [])
        sweeps.add_ended_trial(folder, values, score_of(values))
    optuna = make_chooser(folder.spec, folder.records)
    scores = [score_of(optuna.point(number, [])) for number in range(31, 51)]
    assert np.mean(scores) > np.mean([record.score for record in folder.records]) + 0.4


def test_optuna_gets_stopped_and_failed_trials_in_their_states(tmp_path):
    folder = sweeps.folder(tmp_path, search="optuna")
    values = {"algo.learning_rate": 1e-3, "net.hidden": [32]}
    ends = [("finished", 1.0), ("stopped", 0.5), ("failed", None), ("failed", 0.1)]
    fresh = Optuna(folder.spec, [])
    for number, (status, score) in enumerate(ends, 1):
        fresh.point(number, [])
        fresh.learn(sweeps.add_ended_trial(folder, values, score, status))
    later = Optuna(folder.spec, folder.records)
    states = ["COMPLETE", "PRUNED", "FAIL", "FAIL"]
    for optuna in (fresh, later):
        assert [trial.state.name for trial in optuna.study.trials] == states
    assert later.study.best_params["algo.learning_rate"] == 1e-3
