"""The settings of a dataclass: names, types, defaults and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

MISSING: Any = dataclasses.MISSING
TRUTH = {"true": True, "yes": True, "on": True, "1": True}
TRUTH |= {"false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class FieldInfo:
    """One setting: its type, default (MISSING: it must be set) and docstring."""

    hint: Any
    default: Any = MISSING
    doc: str = ""


def dotted_name(path: str, name: str) -> str:
    """Return the dotted name of `name` inside the group `path`."""
    return f"{path}.{name}" if path else name


def is_settings(value: Any) -> bool:
    """True if `value` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def flags_of(of: Any, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every setting of a dataclass by its dotted name, including nested ones.

    `of` is a class, or an instance whose values are then the defaults.
    """
    cls, base = (of, None) if isinstance(of, type) else (type(of), of)
    docs = _docs(cls)
    found: dict[str, FieldInfo] = {}
    for name, hint in hints_of(cls).items():
        current, dotted = current_of(cls, base, name), dotted_name(prefix, name)
        if is_settings(current) or dataclasses.is_dataclass(hint):
            found |= flags_of(current if is_settings(current) else hint, dotted)
        else:
            found[dotted] = FieldInfo(hint, current, docs.get(name, ""))
    return found


def current_of(cls: Any, base: Any, name: str) -> Any:
    """Return a setting's value in `base`, else its default, else MISSING."""
    if base is not None:
        return getattr(base, name)
    field = cls.__dataclass_fields__[name]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@functools.cache
def _docs(cls: Any) -> dict[str, str]:
    """Return the docstring under each field, including those of base classes."""
    docs: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if dataclasses.is_dataclass(part):
            docs |= _docs_in_source(part)
    return docs


def _docs_in_source(cls: Any) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # made by exec, or installed without source code
        return {}
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    docs = {}
    for field, below in itertools.pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


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
