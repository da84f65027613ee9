"""Settings: conversion of dataclasses to and from dicts, flags and help."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from rookery.errors import BadInput, require
from rookery.fields import MISSING, flags_of, from_dict, help_text, nest, parse_flags, to_dict


@dataclass(frozen=True, kw_only=True)
class Base:
    gamma: float = 0.99
    """Discount per
    agent step."""
    learning_rate: float = 3e-4
    """Step size."""

    def __post_init__(self) -> None:
        require(0 < self.gamma <= 1, f"algo.gamma must lie in (0, 1], got {self.gamma}")


@dataclass(frozen=True, kw_only=True)
class Algo(Base):
    normalize: bool = True
    """Scale the advantages."""
    loss: Literal["huber", "mse"] = "huber"
    """Which loss."""
    clip: float | None = 0.5
    """Largest gradient norm."""


@dataclass(frozen=True, kw_only=True)
class Other:
    alpha: float = 0.6
    """Exponent of the priorities."""


@dataclass(frozen=True, kw_only=True)
class Config:
    algo: Algo = field(default_factory=Algo)
    env_steps: int = 200_000
    """Agent steps over all actors."""
    name: str | None = None
    """The folder's name."""
    compile: bool = False
    """Compile the networks."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers."""
    size: tuple[int, int] = (84, 84)
    devices: tuple[str, ...] = ("cpu",)
    convolutions: tuple[tuple[int, int], ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    stop_return: float | None = None
    threads: int | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Required:
    env: str
    algo: Any = field(default_factory=Algo)


def error_of(values: dict[str, Any], cls: Any = Config) -> str:
    with pytest.raises(BadInput) as caught:
        from_dict(cls, values)
    return str(caught.value)


def converted(name: str, value: Any) -> Any:
    return getattr(from_dict(Config, {name: value}), name)


def test_round_trip_through_json():
    config = Config(
        algo=Algo(gamma=0.5, clip=None, loss="mse"),
        name="x",
        hidden=(),
        convolutions=((32, 8), (64, 4)),
        kwargs={"a": [1, {"b": None}]},
        stop_return=float("-inf"),
        threads=3,
    )
    text = json.dumps(to_dict(config), allow_nan=False)
    assert from_dict(Config, json.loads(text)) == config
    assert from_dict(Config, to_dict(Config())) == Config()


def test_values_replace_those_of_the_base_and_keep_the_rest():
    base = Config(algo=Algo(gamma=0.5, clip=None), env_steps=7)
    changed = from_dict(Config, {"algo": {"clip": 1}}, base)
    assert changed == Config(algo=Algo(gamma=0.5, clip=1.0), env_steps=7)
    assert isinstance(changed.algo.clip, float)


def test_a_nested_group_keeps_the_type_of_its_current_value():
    base = Required(env="A", algo=Other())
    assert from_dict(Required, {"algo": {"alpha": "0.7"}}, base).algo == Other(alpha=0.7)
    assert "algo.alpha" in flags_of(base)
    assert "algo.gamma" in flags_of(Required)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("200_000", 200_000), ("1e6", 1_000_000), (1e6, 1_000_000), ("-3", -3), (" 7 ", 7)],
)
def test_whole_numbers_are_converted(value: Any, expected: int):
    result = converted("env_steps", value)
    assert result == expected
    assert type(result) is int


def test_large_whole_numbers_keep_every_digit():
    assert converted("env_steps", "9007199254740993") == 9007199254740993


@pytest.mark.parametrize("value", [1.5, "1.5", True, "abc", "", None, [1], "inf", float("nan")])
def test_other_values_for_a_whole_number_are_errors(value: Any):
    assert error_of({"env_steps": value}).startswith("env_steps: expected a whole number, got ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((word, True) for word in (True, "True", "yes", "on", "1")),
        *((word, False) for word in (False, "false", "no", "OFF", "0")),
    ],
)
def test_words_for_true_and_false_are_converted(value: Any, expected: bool):
    assert converted("compile", value) is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hidden", "64,32", (64, 32)),
        ("hidden", "64x32", (64, 32)),
        ("hidden", "[64, 32]", (64, 32)),
        ("hidden", "(64, 32,)", (64, 32)),
        ("hidden", "64", (64,)),
        ("hidden", "", ()),
        ("hidden", [64, 32], (64, 32)),
        ("size", "84x96", (84, 96)),
        ("devices", "cuda:0,xpu:1", ("cuda:0", "xpu:1")),
        ("convolutions", "[[32, 8], [64, 4]]", ((32, 8), (64, 4))),
        ("kwargs", '{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("name", "none", None),
        ("stop_return", "null", None),
        ("stop_return", "-200", -200.0),
        ("threads", "4", 4),
        ("threads", "auto", "auto"),
    ],
)
def test_text_is_converted_to_the_type_of_the_setting(name: str, value: Any, expected: Any):
    assert converted(name, value) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algo": {"gamma": "abc"}}, 'algo.gamma: expected a number, got "abc"'),
        ({"algo": {"loss": "l1"}}, 'algo.loss: expected one of "huber", "mse", got "l1"'),
        ({"algo": {"clip": "x"}}, 'algo.clip: expected a number or none, got "x"'),
        ({"algo": {"gamma": None}}, "algo.gamma: expected a number, got null"),
        ({"algo": 3}, "algo: expected settings, got 3"),
        ({"compile": 3}, "compile: expected true or false, got 3"),
        ({"size": "84"}, 'size: expected 2 values such as 64,64, got "84"'),
        ({"hidden": "64,a"}, 'hidden: expected a list such as 64,64, got "64,a"'),
        ({"hidden": 64}, "hidden: expected a list such as 64,64, got 64"),
        ({"name": 3}, "name: expected text or none, got 3"),
        ({"kwargs": "{a"}, 'kwargs: expected a JSON object such as {"key": 1}, got "{a"'),
        ({"algo": {"gamma": 2}}, "algo.gamma must lie in (0, 1], got 2.0"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_expected(values: dict[str, Any], message: str):
    assert error_of(values) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"algo": {"learning_rat": 1}},
            'algo.learning_rat: no such setting. Did you mean "algo.learning_rate"?',
        ),
        ({"gamma": 1}, 'gamma: no such setting. Did you mean "algo.gamma"?'),
        ({"algos": {}}, 'algos: no such setting. Did you mean "algo"?'),
        ({"algo": {"zzzz": 1}}, "algo.zzzz: no such setting."),
    ],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_name(values: dict[str, Any], message: str):
    assert error_of(values) == message


def test_a_missing_setting_without_default_is_an_error():
    assert error_of({}, Required) == "env: must be set, it has no default"
    assert from_dict(Required, {"env": "A"}) == Required("A")


FLAGS = {name: info.hint for name, info in flags_of(Config).items()}


def test_flags_are_parsed_in_every_spelling():
    args = "ppo --algo.learning-rate 0.1 --env-steps=1e6 CartPole-v1 --algo.gamma=0.9"
    given, positional = parse_flags(args.split(" "), FLAGS)
    assert given == {"algo.learning_rate": "0.1", "env_steps": "1e6", "algo.gamma": "0.9"}
    assert positional == ["ppo", "CartPole-v1"]
    assert from_dict(Config, nest(given)) == Config(
        algo=Algo(learning_rate=0.1, gamma=0.9), env_steps=1_000_000
    )


@pytest.mark.parametrize(
    ("args", "given", "positional"),
    [
        ("--compile ppo", {"compile": True}, ["ppo"]),
        ("--compile false ppo", {"compile": "false"}, ["ppo"]),
        ("--no-compile ppo", {"compile": False}, ["ppo"]),
        ("--no-algo.normalize", {"algo.normalize": False}, []),
        ("--compile=no", {"compile": "no"}, []),
        ("--stop-return -200", {"stop_return": "-200"}, []),
        ("--stop-return -.5", {"stop_return": "-.5"}, []),
        ("--name=a=b", {"name": "a=b"}, []),
        ("--name a --name b", {"name": "b"}, []),
        ("a -- --compile", {}, ["a", "--compile"]),
        ("-", {}, ["-"]),
    ],
)
def test_flag_values(args: str, given: dict[str, Any], positional: list[str]):
    assert parse_flags(args.split(), FLAGS) == (given, positional)


def test_a_flag_whose_name_starts_with_no_is_not_a_negation():
    assert parse_flags(["--no-preset"], {"no_preset": bool, "preset": str}) == (
        {"no_preset": True},
        [],
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--algo.learning_rat 1",
            '--algo.learning_rat: no such option. Did you mean "--algo.learning_rate"?',
        ),
        ("--gamma 1", '--gamma: no such option. Did you mean "--algo.gamma"?'),
        ("--env-step 1", '--env-step: no such option. Did you mean "--env-steps"?'),
        ("--qqqq", "--qqqq: no such option."),
        ("-q", "-q: no such option."),
        ("--name", "--name: needs a value"),
        ("--name --compile", "--name: needs a value"),
        ("--no-compile=1", "--no-compile: takes no value"),
        ("--no-name", "--no-name: no such option."),
    ],
)
def test_bad_flags_are_errors(args: str, message: str):
    with pytest.raises(BadInput) as caught:
        parse_flags(args.split(), FLAGS)
    assert str(caught.value).startswith(message)


def test_nest_groups_dotted_names():
    assert nest({"a.b.c": 1, "a.d": 2, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    with pytest.raises(BadInput, match=r"a\.b: a is also set"):
        nest({"a": 1, "a.b": 2})
    with pytest.raises(BadInput, match="a: a setting inside it is also set"):
        nest({"a.b": 2, "a": 1})


def test_flags_carry_type_default_and_inherited_docstring():
    flags = flags_of(Config)
    assert flags["algo.gamma"].doc == "Discount per agent step."
    assert flags["algo.gamma"].default == 0.99
    assert flags["algo.gamma"].hint is float
    assert flags["algo.clip"].doc == "Largest gradient norm."
    assert flags["size"].doc == ""
    assert "algo" not in flags
    assert flags_of(Required)["env"].default is MISSING
    assert flags_of(Algo(gamma=0.5), "algo")["algo.gamma"].default == 0.5


def test_help_lists_every_setting():
    text = help_text(Config, column=30)
    assert "--algo.gamma FLOAT          Discount per agent step. (default: 0.99)" in text
    assert "--env-steps INT             Agent steps over all actors. (default: 200_000)" in text
    assert "--no-algo.normalize         Scale the advantages. (default: true)" in text
    assert "--algo.loss {huber,mse}     Which loss. (default: huber)" in text
    assert "--hidden INT,...            Widths of the layers. (default: 64,64)" in text
    assert "--name TEXT|none            The folder's name. (default: none)" in text
    assert "(required)" in help_text(Required)
    assert max(map(len, help_text(Config, width=60).splitlines())) <= 60


def test_fields_need_neither_torch_nor_numpy():
    code = "import sys, rookery.fields; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
