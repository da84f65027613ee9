"""Conversion of plain dicts and command-line text to typed dataclasses, and back."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from rookery.errors import BadInput, require
from rookery.fields.describe import (
    MISSING,
    TRUTH,
    current_of,
    did_you_mean,
    dotted_name,
    flags_of,
    hints_of,
    is_settings,
)

T = TypeVar("T")


def from_dict(cls: type[T], values: Mapping[str, Any], base: T | None = None, path: str = "") -> T:
    """Return `base` (or the defaults of `cls`) with `values` replaced; nested dicts nest.

    Values may be typed (from JSON or YAML) or text (from the command line). `path` is the dotted
    name of the group, for messages.
    """
    if not isinstance(values, Mapping):
        raise _mismatch(path or "config", cls, values)
    hints: dict[str, Any] = hints_of(cls)  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        name = dotted_name(path, str(key))
        if key not in hints:
            known = [
                *flags_of(cls if base is None else base, path),
                *(dotted_name(path, other) for other in hints),
            ]
            raise BadInput(f"{name}: no such setting.{did_you_mean(name, known)}")
        changes[key] = _convert(hints[key], value, name, current_of(cls, base, key))
    if base is not None:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        given = field.name in changes or current_of(cls, None, field.name) is not MISSING
        require(given, f"{dotted_name(path, field.name)}: must be set, it has no default")
    return cls(**changes)


def to_dict(instance: Any) -> dict[str, Any]:
    """Return a JSON-ready dict that `from_dict` turns back into an equal instance."""
    return {f.name: _plain(getattr(instance, f.name)) for f in dataclasses.fields(instance)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    # JSON has no infinity; the text "inf" is read back as the same number.
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _convert(hint: Any, value: Any, path: str, current: Any = MISSING) -> Any:
    """Return `value` as the type `hint`, or raise BadInput; nested dicts change `current`."""
    if dataclasses.is_dataclass(hint) or (is_settings(current) and isinstance(value, Mapping)):
        start = current if is_settings(current) else None
        group: Any = type(start) if start is not None else hint
        return value if is_settings(value) else from_dict(group, value, start, path)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value, path, current)
    converters = {Literal: _as_choice, tuple: _as_tuple, dict: _as_dict}
    if origin in converters:
        return converters[origin](args, value, path, hint)
    if hint not in (bool, int, float, str):
        raise TypeError(f"{path}: settings of type {hint} are not supported")
    result = {bool: _as_bool, int: _as_int, float: _as_float, str: _as_text}[hint](value)
    if result is None:
        raise _mismatch(path, hint, value)
    return result


def _convert_union(hint: Any, value: Any, path: str, current: Any) -> Any:
    kinds = typing.get_args(hint)
    if type(None) in kinds and (value is None or _lower(value) in ("none", "null")):
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds:
        # The order of the hint decides: for `int | str`, text becomes an int if it can.
        try:
            return _convert(kind, value, path, current)
        except BadInput:
            if dataclasses.is_dataclass(kind):
                raise
    raise _mismatch(path, hint, value)


def _as_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else TRUTH.get(_lower(value))


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _as_int(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(_\d+)*", value.strip()):
        return int(value)
    number = _as_float(value)
    return int(number) if number is not None and number.is_integer() else None


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_choice(choices: tuple[Any, ...], value: Any, path: str, hint: Any) -> Any:
    for choice in choices:
        same = choice == value and type(choice) is type(value)
        if same or (isinstance(value, str) and str(choice).lower() == value.lower()):
            return choice
    raise _mismatch(path, hint, value)


def _as_tuple(kinds: tuple[Any, ...], value: Any, path: str, hint: Any) -> tuple[Any, ...]:
    items = _split(value, kinds[0]) if isinstance(value, str) else value
    many = len(kinds) == 2 and kinds[1] is Ellipsis
    fits = isinstance(items, list | tuple) and (many or len(items) == len(kinds))
    if not fits:
        raise _mismatch(path, hint, value)
    try:
        pairs = zip(kinds[:1] * len(items) if many else kinds, items, strict=True)
        return tuple(_convert(kind, item, path) for kind, item in pairs)
    except BadInput:
        raise _mismatch(path, hint, value) from None


def _split(text: str, kind: Any) -> Any:
    """Return the items of "64,64", "64x64" or "[64, 64]"."""
    try:
        items = json.loads(text)
        if isinstance(items, list):
            return items
    except ValueError:
        pass
    separators = "[,xX]" if kind in (int, float) else ","
    inner = text.strip().strip("[]()").strip().rstrip(",")
    return [item.strip() for item in re.split(separators, inner)] if inner else []


def _as_dict(kinds: tuple[Any, ...], value: Any, path: str, hint: Any) -> dict[str, Any]:
    items = value
    if isinstance(value, str):
        try:
            items = json.loads(value)
        except ValueError:
            raise _mismatch(path, hint, value) from None
    if not isinstance(items, Mapping):
        raise _mismatch(path, hint, items)
    return {str(key): _convert(kinds[1], x, dotted_name(path, key)) for key, x in items.items()}


def _meaning(hint: Any) -> str:
    """Return the words for a value of this type in a message."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(_show(choice) for choice in args)
    if origin is tuple:
        count = "a list" if args[-1] is Ellipsis else f"{len(args)} values"
        return f"{count} such as {_example(args)}"
    if origin is dict:
        return 'a JSON object such as {"key": 1}'
    if origin in (Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else _meaning(arg) for arg in args)
    return names.get(hint, "settings")


def _example(kinds: tuple[Any, ...]) -> str:
    one = {int: "64", float: "0.5", str: "a"}.get(kinds[0], "[...]")
    return ",".join([one] * (2 if kinds[-1] is Ellipsis else len(kinds)))


def _mismatch(path: str, hint: Any, value: Any) -> BadInput:
    return BadInput(f"{path}: expected {_meaning(hint)}, got {_show(value)}")


def _show(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _lower(value: Any) -> str:
    return value.strip().lower() if isinstance(value, str) else ""
