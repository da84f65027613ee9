"""Command-line flags of typed dataclasses: parsing and help texts."""

from __future__ import annotations

import itertools
import re
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Union

from rookery.errors import BadInput, require
from rookery.fields.convert import MISSING, TRUTH, FieldInfo, did_you_mean, flags_of

NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d|inf)")


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
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


def parse_flags(
    args: Sequence[str], flags: Mapping[str, Any], repeatable: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return the flags by dotted name, and the positional arguments.

    `flags` maps each known name to its type hint (or FieldInfo). Values stay text for `from_dict`;
    of a repeated flag the last value counts, or if it is `repeatable` a list of all; arguments
    after `--` are positional.
    """
    known = {name.replace("-", "_"): name for name in flags}
    given: dict[str, Any] = {}
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
        given[name] = [*given.get(name, []), value] if name in repeatable else value
    return given, positional


def _is_flag(token: str) -> bool:
    return len(token) > 1 and token.startswith("-") and not NEGATIVE_NUMBER.match(token)


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


def peek_flag(args: Sequence[str], flag: str) -> str | None:
    """Return the value of one flag without parsing the others; None if it is not given."""
    for arg, after in itertools.pairwise([*args, None]):
        if arg == flag and after is not None:
            return after
        if arg is not None and arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
    return None


def flag_name(name: str) -> str:
    """Return a flag as help spells it: options with hyphens, grouped settings as in config.json."""
    return "--" + (name if "." in name else name.replace("_", "-"))


def help_text(of: Any, prefix: str = "", width: int = 100, column: int = 34) -> str:
    """Return the help of a dataclass's settings: flag, kind of value, docstring and default.

    `of` is a class, an instance (its values are the defaults), or the result of `flags_of`.
    """
    flags = of if isinstance(of, Mapping) else flags_of(of, prefix)
    entries = []
    for name, info in flags.items():
        default = "required" if info.default is MISSING else f"default: {_text(info.default)}"
        # Of a boolean, show the form that changes the default: the flag itself or its `no-` form.
        no = "no-" if _is_bool(info) and info.default is True else ""
        kind = "" if _is_bool(info) else _kind(info.hint)
        left = f"  {flag_name(no + name)} {kind}".rstrip()
        lines = textwrap.wrap(f"{info.doc} ({default})".strip(), max(20, width - column))
        first = f"{left}\n{' ' * column}" if len(left) > column - 2 else left.ljust(column)
        entries.append(first + f"\n{' ' * column}".join(lines))
    return "\n".join(entries)


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
