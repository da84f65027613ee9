"""Command-line flags: parsing and help."""

from __future__ import annotations

import re
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from rookery.errors import BadInput, require
from rookery.fields.describe import MISSING, TRUTH, FieldInfo, did_you_mean, flags_of

X = TypeVar("X")

_NEGATIVE = re.compile(r"-(\d|\.\d|inf)")


def parse_flags(
    args: Sequence[str], flags: Mapping[str, Any]
) -> tuple[dict[str, str | bool], list[str]]:
    """Return the flags by dotted name, and the positional arguments.

    `flags` maps each known name to its type hint (or FieldInfo). Values stay text for `from_dict`;
    of a repeated flag the last value counts; arguments after `--` are positional.
    """
    known = {name.replace("-", "_"): name for name in flags}
    given: dict[str, str | bool] = {}
    positional: list[str] = []
    rest = list(args)
    while rest:
        token = rest.pop(0)
        if token == "--":
            return given, positional + rest
        if not _is_flag(token):
            positional.append(token)
            continue
        name, value = _read_flag(token, rest, known, flags)
        given[name] = value
    return given, positional


def take_all(args: Sequence[str], flag: str) -> tuple[list[str], list[str]]:
    """Return every value of a flag that may be repeated, and the other arguments."""
    values: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            return values, [*rest, word, *words]
        if word == flag:
            value = next(words, "")
            require(value and not value.startswith("--"), f"{flag}: needs a value")
            values.append(value)
        elif word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
        else:
            rest.append(word)
    return values, rest


def peek_flag(args: Sequence[str], flag: str) -> str | None:
    """Return the value of one flag without parsing the others; None if it is not given."""
    for position, arg in enumerate(args):
        if arg == flag and position + 1 < len(args):
            return args[position + 1]
        if arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
    return None


def _is_flag(token: str) -> bool:
    return len(token) > 1 and token.startswith("-") and not _NEGATIVE.match(token)


def _read_flag(
    token: str, rest: list[str], known: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[str, str | bool]:
    """Return name and value of the flag `token`; a separate value is taken from `rest`."""
    spelled, has_value, value = token.partition("=")
    name = spelled.lstrip("-").replace("-", "_")
    positive = name.removeprefix("no_")
    if name not in known and positive in known and _is_bool(flags[known[positive]]):
        require(not has_value, f"{spelled}: takes no value")
        return known[positive], False
    if name not in known:
        raise BadInput(f"{spelled}: no such option.{did_you_mean(name, known, flag_name)}")
    if has_value:
        return known[name], value
    if _is_bool(flags[known[name]]):
        return known[name], rest.pop(0) if rest and rest[0].lower() in TRUTH else True
    require(rest and not _is_flag(rest[0]), f"{spelled}: needs a value")
    return known[name], rest.pop(0)


def _is_bool(flag: Any) -> bool:
    hint = flag.hint if isinstance(flag, FieldInfo) else flag
    return hint is bool or set(typing.get_args(hint)) == {bool, type(None)}


def nest(flat: Mapping[str, X]) -> dict[str, Any]:
    """Return {"algo.gamma": 1} as {"algo": {"gamma": 1}}."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        *groups, leaf = dotted.split(".")
        inside = nested
        for depth, group in enumerate(groups, 1):
            inside = inside.setdefault(group, {})
            parent = ".".join(groups[:depth])
            require(isinstance(inside, dict), f"{dotted}: {parent} is also set; set one of them")
        require(leaf not in inside, f"{dotted}: a setting inside it is also set; set one of them")
        inside[leaf] = value
    return nested


def flag_name(name: str) -> str:
    """Return a flag as help spells it: options with hyphens, grouped settings as in config.json."""
    return "--" + (name if "." in name else name.replace("_", "-"))


def help_text(of: Any, prefix: str = "", width: int = 100, column: int = 34) -> str:
    """Return the help of a dataclass's settings: flag, kind of value, docstring and default.

    `of` is a class, an instance (its values are the defaults), or the result of `flags_of`.
    """
    flags = of if isinstance(of, Mapping) else flags_of(of, prefix)
    return "\n".join(_help_entry(name, info, width, column) for name, info in flags.items())


def _help_entry(name: str, info: FieldInfo, width: int, column: int) -> str:
    default = "required" if info.default is MISSING else f"default: {_text(info.default)}"
    if _is_bool(info):
        # Show the form that changes the default: the flag itself or its `no-` form.
        name, kind = (f"no-{name}" if info.default is True else name), ""
    else:
        kind = _kind(info.hint)
    left = f"  {flag_name(name)} {kind}".rstrip()
    lines = textwrap.wrap(f"{info.doc} ({default})".strip(), max(20, width - column))
    if len(left) > column - 2:
        return "\n".join([left, *(" " * column + line for line in lines)])
    return left.ljust(column) + f"\n{' ' * column}".join(lines)


def _kind(hint: Any) -> str:
    """Return the placeholder of a value in help."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "{" + ",".join(str(choice) for choice in args) + "}"
    if origin is tuple:
        return f"{_kind(args[0])},..." if args[-1] is Ellipsis else ",".join(map(_kind, args))
    if origin in (Union, types.UnionType):
        return "|".join("none" if arg is type(None) else _kind(arg) for arg in args)
    if origin is dict:
        return "JSON"
    return {int: "INT", float: "FLOAT", bool: "BOOL", str: "TEXT"}.get(hint, "VALUE")


def _text(value: Any) -> str:
    """Return a default as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and not any(isinstance(item, tuple) for item in value):
        return ",".join(map(_text, value))
    return f"{value:_}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
