"""Search spaces: parsing, drawing and checking."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.config import default_config, from_values, to_values
from rookery.errors import BadInput
from rookery.fields import flags_of, nest
from rookery.sweep.space import (
    Choice,
    Range,
    check_space,
    grid_points,
    parse_dimension,
    spell,
    split_settings,
)

CONFIG = default_config("ppo", "CartPole-v1")


def checked(**spaces):
    named = {name.replace("__", "."): text for name, text in spaces.items()}
    values = to_values(CONFIG)
    return check_space(
        split_settings(named)[1], flags_of(CONFIG), lambda point: from_values(values, nest(point))
    )


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("log:1e-5:1e-2", Range(1e-5, 1e-2, log=True)),
        ("uniform:-1:1", Range(-1, 1)),
        ("int:1:4", Range(1, 4, whole=True)),
        ("logint:16:2_048", Range(16, 2048, log=True, whole=True)),
        ("choice: a, b", Choice(("a", "b"))),
        ({"log": [1e-5, "1e-2"]}, Range(1e-5, 1e-2, log=True)),
        ({"choice": [[64, 64], [32]]}, Choice(([64, 64], [32]))),
        ("3e-4", None),
        ("cuda:0", None),
        ("my.module:Env-v0", None),
        (None, None),
        ({"sleep_ms": 5}, None),
    ],
)
def test_parse_tells_spaces_from_fixed_values(text, space):
    assert parse_dimension("x", text) == space


def test_written_space_parses_to_the_same_space():
    for space in (Range(1, 1_234_567, whole=True), Range(1e-5, 0.1, log=True), Choice((1, None))):
        assert parse_dimension("x", space.written()) == space


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("log:1e-2:1e-5", "x: log:0.01:1e-05: LOW must be below HIGH"),
        ("uniform:1:1", "LOW must be below HIGH"),
        ("log:0:1", "x: log:0:1: LOW must be above 0"),
        ("logint:-4:4", "LOW must be above 0"),
        ("int:1:2.5", "needs whole numbers"),
        ("uniform:0:inf", "is not finite"),
        ("log:1", 'x: expected log:LOW:HIGH, got "log:1"'),
        ("log:a:b", "expected log:LOW:HIGH"),
        ("choice:a", "two values or more"),
        ("choice:a,,b", "is empty"),
        ("choice:", "is empty"),
    ],
)
def test_invalid_spaces_are_refused(text, named):
    with pytest.raises(BadInput, match=r"^x: ") as caught:
        parse_dimension("x", text)
    assert named in str(caught.value)


def test_draws_are_uniform_or_log_uniform():
    shares = np.random.default_rng(0).random(4_000)
    log = np.array([Range(1e-4, 1e-2, log=True).draw(at) for at in shares])
    assert log.min() >= 1e-4
    assert log.max() <= 1e-2
    assert abs((log < 1e-3).mean() - 0.5) < 0.03  # the median of the logarithms
    whole = [Range(1, 4, whole=True).draw(at) for at in shares]
    counts = np.array([whole.count(value) for value in (1, 2, 3, 4)])
    assert counts.sum() == 4_000
    assert abs(counts - 1_000).max() < 120  # four standard deviations
    assert all(isinstance(value, int) for value in whole)
    assert Choice(("a", "b")).draw(0.999) == "b"


def test_drawn_numbers_have_four_digits():
    assert Range(0, 1).draw(1 / 3) == 0.3333
    assert Range(1 / 3, 1).draw(0.0) == 1 / 3  # rounding does not leave the range


def test_choices_are_converted_to_the_type_of_the_setting():
    space = checked(
        algo__learning_rate="choice:1e-3,0.01",
        net__hidden="choice:64x64,32",
        algo__normalize_advantage="choice:yes,no",
        stop_return="choice:none,5",
    )
    assert [space[name].values for name in space] == [
        *((0.001, 0.01), ([64, 64], [32]), (True, False), (None, 5.0))
    ]


@pytest.mark.parametrize(
    ("spaces", "named"),
    [
        ({"algo__gamma": "uniform:0.5:2"}, "algo.gamma must lie in (0, 1], got 2"),
        ({"algo__learning_rate": "choice:1e-3,-1"}, "algo.learning_rate must be positive, got -1"),
        ({"net__activation": "choice:tanh,rellu"}, 'net.activation: expected one of "tanh"'),
        ({"envs": "log:4:64"}, "envs: takes whole numbers; use logint:4:64"),
        ({"net__activation": "uniform:0:1"}, "net.activation"),
        ({"algo__gamma": "choice:0.9,.90"}, "algo.gamma: 0.9 is given twice"),
    ],
)
def test_invalid_value_of_a_setting_is_named(spaces, named):
    with pytest.raises(BadInput) as caught:
        checked(**spaces)
    assert named in str(caught.value)


def test_value_valid_with_some_others_is_accepted():
    def resolve(point):
        if point["a"] * point["b"] > 40:
            raise BadInput(f"a times b must be 40 at most, got {point['a'] * point['b']}")
        return point

    space = {"a": Choice((1, 10)), "b": Choice((2, 20))}
    assert check_space(space, {}, resolve) == space
    with pytest.raises(BadInput, match="got 100"):
        check_space({"a": Choice((1, 50)), "b": Choice((2, 20))}, {}, resolve)


def test_grid_has_every_combination_once():
    points = grid_points({"a": Choice(("x", "y")), "b": Range(1, 3, whole=True)})
    assert points == [{"a": a, "b": b} for a in "xy" for b in (1, 2, 3)]
    with pytest.raises(BadInput, match=r"a: uniform:0:1 has too many values for a grid"):
        grid_points({"a": Range(0, 1)})
    with pytest.raises(BadInput, match="a grid of 1,000,000 points"):
        grid_points({name: Range(1, 100, whole=True) for name in "abc"})


def test_spell_returns_values_as_typed_on_the_command_line():
    values = [0.0003, [64, 32], True, None, "tanh"]
    assert [spell(value) for value in values] == ["0.0003", "64x32", "true", "null", "tanh"]
