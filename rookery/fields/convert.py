"""Typed dataclasses: their settings by name, and conversion to and from plain dicts."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

from rookery.errors import BadInput, require

T = TypeVar("T")

MISSING: Any = dataclasses.MISSING
TRUTH = {"true": True, "yes": True, "on": True, "1": True}
TRUTH |= {"false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class FieldInfo:
    """One setting: its type, default (MISSING: it must be set) and docstring."""

    hint: Any
    default: Any = MISSING
    doc: str = ""


def flags_of(of: Any, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every setting of a dataclass by its dotted name, including nested ones.

    `of` is a class, or an instance whose values are then the defaults.
    """
    cls, base = (of, None) if isinstance(of, type) else (type(of), of)
    docs = _docs(cls)
    found: dict[str, FieldInfo] = {}
    for name, hint in _hints(cls).items():
        current, dotted = _current(cls, base, name), _dotted(prefix, name)
        if _is_settings(current) or dataclasses.is_dataclass(hint):
            found |= flags_of(current if _is_settings(current) else hint, dotted)
        else:
            found[dotted] = FieldInfo(hint, current, docs.get(name, ""))
    return found


def _current(cls: Any, base: Any, name: str) -> Any:
    """Return a setting's value in `base`, else its default, else MISSING."""
    if base is not None:
        return getattr(base, name)
    field = cls.__dataclass_fields__[name]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@functools.cache
def _docs(cls: Any) -> dict[str, str]:
    """Return the docstring under each field, including those of base classes."""
    docs: dict[str, str] = {}
    parts: list[Any] = [*filter(dataclasses.is_dataclass, reversed(cls.__mro__))]
    for part in parts:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError, SyntaxError):  # made by exec, or installed without source code
            continue
        for field, below in itertools.pairwise(typing.cast(ast.ClassDef, tree.body[0]).body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_settings(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def did_you_mean(name: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """Return ' Did you mean "X"?' or "": the same last part in another group, else the closest
    spelling."""
    group, _, leaf = name.rpartition(".")
    leaves = {key: key.rpartition(".")[2] for key in known}
    siblings = {part: key for key, part in leaves.items() if key.rpartition(".")[0] == group}
    anywhere = {part: key for key, part in reversed(leaves.items())}
    for candidates, cutoff in ((anywhere, 1.0), (siblings, 0.6), (anywhere, 0.7)):
        if close := difflib.get_close_matches(leaf, candidates, n=1, cutoff=cutoff):
            return f' Did you mean "{spell(candidates[close[0]])}"?'
    return ""


def from_dict(cls: type[T], values: Mapping[str, Any], base: T | None = None, path: str = "") -> T:
    """Return `base` (or the defaults of `cls`) with `values` replaced; nested dicts nest.

    Values may be typed (from JSON or YAML) or text (from the command line). `path` is the dotted
    name of the group, for messages.
    """
    if not isinstance(values, Mapping):
        raise _mismatch(path or "config", cls, values)
    hints: dict[str, Any] = _hints(cls)  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        name = _dotted(path, str(key))
        if key not in hints:
            inside = flags_of(cls if base is None else base, path)
            known = [*inside, *(_dotted(path, other) for other in hints)]
            raise BadInput(f"{name}: no such setting.{did_you_mean(name, known)}")
        changes[key] = _convert(hints[key], value, name, _current(cls, base, key))
    if base is not None:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    for key in hints:
        given = key in changes or _current(cls, None, key) is not MISSING
        require(given, f"{_dotted(path, key)}: must be set, it has no default")
    return cls(**changes)


def require_least(
    settings: Any, least: int, names: Iterable[str], spell: Callable[[str], str] = str
) -> None:
    """Raise BadInput for one of the settings `names` whose value is a number below `least`."""
    for name in names:
        value = getattr(settings, name)
        fine = not isinstance(value, int | float) or value >= least
        bound = f"at least {least}" if least else "0 or more"
        require(fine, f"{spell(name)} must be {bound}, got {value}")


def to_dict(instance: Any) -> dict[str, Any]:
    """Return a JSON-ready dict that `from_dict` turns back into an equal instance."""
    return {f.name: _plain(getattr(instance, f.name)) for f in dataclasses.fields(instance)}


def _plain(value: Any) -> Any:
    if _is_settings(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    # JSON has no infinity; the text "inf" is read back as the same number.
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _convert(hint: Any, value: Any, path: str, current: Any = MISSING) -> Any:
    """Return `value` as the type `hint`, or raise BadInput; nested dicts change `current`."""
    if dataclasses.is_dataclass(hint) or (_is_settings(current) and isinstance(value, Mapping)):
        start = current if _is_settings(current) else None
        group: Any = type(start) if start is not None else hint
        return value if _is_settings(value) else from_dict(group, value, start, path)
    if hint is Any:
        return value
    converters: dict[Any, Callable[..., Any]] = {Literal: _as_choice, tuple: _as_tuple}
    converters |= {dict: _as_dict, Union: _as_union, types.UnionType: _as_union}
    origin = typing.get_origin(hint)
    if origin in converters:
        return converters[origin](hint, value, path, current)
    if hint not in (bool, int, float, str):
        raise TypeError(f"{path}: settings of type {hint} are not supported")
    result = _as_scalar(hint, value)
    if result is None:
        raise _mismatch(path, hint, value)
    return result


def _as_union(hint: Any, value: Any, path: str, current: Any) -> Any:
    kinds = typing.get_args(hint)
    if type(None) in kinds and (value is None or _lower(value) in ("none", "null")):
        return None
    for kind in kinds:
        # The order of the hint decides: for `int | str`, text becomes an int if it can.
        try:
            if kind is not type(None):
                return _convert(kind, value, path, current)
        except BadInput:
            if dataclasses.is_dataclass(kind):
                raise
    raise _mismatch(path, hint, value)


def _as_scalar(hint: Any, value: Any) -> Any:
    """Return `value` as a bool, int, float or str; None if it is not one."""
    if hint is str:
        return value if isinstance(value, str) else None
    if hint is bool:
        return value if isinstance(value, bool) else TRUTH.get(_lower(value))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if hint is int and re.fullmatch(r"[+-]?\d+(_\d+)*", str(value).strip()):
        return int(value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if hint is float:
        return None if math.isnan(number) else number
    return int(number) if number.is_integer() else None


def _as_choice(hint: Any, value: Any, path: str, _: Any) -> Any:
    for choice in typing.get_args(hint):
        same = choice == value and type(choice) is type(value)
        if same or (isinstance(value, str) and str(choice).lower() == value.lower()):
            return choice
    raise _mismatch(path, hint, value)


def _as_tuple(hint: Any, value: Any, path: str, _: Any) -> tuple[Any, ...]:
    kinds = typing.get_args(hint)
    items = _split(value, kinds[0]) if isinstance(value, str) else value
    many = len(kinds) == 2 and kinds[1] is Ellipsis
    if not isinstance(items, list | tuple) or not (many or len(items) == len(kinds)):
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


def _as_dict(hint: Any, value: Any, path: str, _: Any) -> dict[str, Any]:
    try:
        items = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise _mismatch(path, hint, value) from None
    if not isinstance(items, Mapping):
        raise _mismatch(path, hint, items)
    kind = typing.get_args(hint)[1]
    return {str(key): _convert(kind, x, _dotted(path, key)) for key, x in items.items()}


def _meaning(hint: Any) -> str:
    """Return the words for a value of this type in a message."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(_show(choice) for choice in args)
    if origin is tuple:
        many = args[-1] is Ellipsis
        one = {int: "64", float: "0.5", str: "a"}.get(args[0], "[...]")
        example = ",".join([one] * (2 if many else len(args)))
        return f"{'a list' if many else f'{len(args)} values'} such as {example}"
    if origin is dict:
        return 'a JSON object such as {"key": 1}'
    if origin in (Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else _meaning(arg) for arg in args)
    return names.get(hint, "settings")


def _mismatch(path: str, hint: Any, value: Any) -> BadInput:
    return BadInput(f"{path}: expected {_meaning(hint)}, got {_show(value)}")


def _show(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _lower(value: Any) -> str:
    return value.strip().lower() if isinstance(value, str) else ""
