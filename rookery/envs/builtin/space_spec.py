"""Spaces written as text, such as "{units: discrete(750)[12], clock: float[1]}".

- `float[84,84]` and `uint8[3](0,9)`: a Box of a type in SPEC_DTYPES, with bounds or without
- `discrete(6)` and `discrete(6)[2,3]`: a Discrete space, and a MultiDiscrete of this shape
- `multidiscrete[3,4]`: these counts; `multibinary[7]`: this shape
- `{name: space, name: space}` and `(space, space)`: a Dict and a Tuple; `(space,)` has one part
- a name in NAMED_OBS or NAMED_ACT
"""

from __future__ import annotations

import ast
import math
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space, spaces

from rookery.errors import BadInput, nearest

SPEC_DTYPES: dict[str, Any] = {
    "float": np.float32,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
}
KINDS = (*SPEC_DTYPES, "discrete", "multidiscrete", "multibinary")

SPEC_GROUPS = ((750, 12, 32), (6, 24, 8), (1501, 20, 8), (40, 32, 16))
"""Codes, entities, and features per entity of each group of the reference observation."""

NAMED_OBS = {
    "reference": "{"
    + ", ".join(
        f"group{i}: {{kind: discrete({codes})[{entities}], features: float[{entities},{width}]}}"
        for i, (codes, entities, width) in enumerate(SPEC_GROUPS)
    )
    + "}"
}
NAMED_ACT = {"reference": "discrete(128)"}

MOST_VALUES = 10**8
"""Most numbers in one part of a space; more is surely a typing error and would fill the memory."""
MOST_CODES = 2**31
DEEPEST = 20
SHOWN = 30
"""Characters shown before and after the position of an error."""


def parse_space(text: object, setting: str, named: dict[str, str] | None = None) -> Space[Any]:
    """Return the space that `text` describes or names; errors begin with `setting`."""
    if not isinstance(text, str):
        raise BadInput(f'{setting} must be a text such as "float[4]", got {text!r}')
    spec = SpaceSpec(" ".join(text.split()), setting, named or {})
    try:
        return spec.space(ast.parse(spec.text, mode="eval").body)
    except SyntaxError as error:
        spec.fail((error.offset or 1) - 1, error.msg)
    except (ValueError, RecursionError, MemoryError):
        spec.fail(0, "cannot be read")


class SpaceSpec:
    """Makes a space of a text that Python has parsed as an expression."""

    def __init__(self, text: str, setting: str, named: dict[str, str]):
        self.text, self.setting, self.named = text, setting, named

    def space(self, node: ast.expr, depth: int = 1) -> Space[Any]:
        if depth > DEEPEST:
            self.fail(node, f"nested deeper than {DEEPEST}")
        match node:
            case ast.Dict(keys=[_, *_] as keys, values=parts):
                names = [key.id for key in keys if isinstance(key, ast.Name)]
                if len(set(names)) < len(keys):
                    self.fail(node, "expected different names")
                made = [self.space(part, depth + 1) for part in parts]
                return spaces.Dict(dict(zip(names, made, strict=True)))
            case ast.Tuple(elts=[_, *_] as parts):
                return spaces.Tuple([self.space(part, depth + 1) for part in parts])
            case ast.Name(id=name) if name in self.named:
                return parse_space(self.named[name], self.setting)
            case ast.Call(func=ast.Name(id="discrete"), args=[count]):
                return spaces.Discrete(self.count(count))
            case ast.Subscript(value=ast.Call(func=ast.Name(id="discrete"), args=[count])):
                return spaces.MultiDiscrete(np.full(self.shape(node.slice), self.count(count)))
            case ast.Subscript(value=ast.Name(id="multidiscrete")):
                return spaces.MultiDiscrete([self.count(x) for x in elements(node.slice)])
            case ast.Subscript(value=ast.Name(id="multibinary")):
                return spaces.MultiBinary(self.shape(node.slice))
            case ast.Subscript(value=ast.Name(id=kind)) if kind in SPEC_DTYPES:
                return self.box(kind, node.slice, [])
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kind)) as sized, args=bounds) if (
                kind in SPEC_DTYPES
            ):
                return self.box(kind, sized.slice, bounds)
        word = next((x.id for x in ast.walk(node) if isinstance(x, ast.Name)), "")
        if word in KINDS:
            example = "discrete(4)" if word == "discrete" else f"{word}[4]"
            self.fail(node, f"expected a form such as {example}")
        known = (*KINDS, *self.named)
        forms = "{name: space}, (space, space) or one of " + ", ".join(known)
        self.fail(node, f"expected {forms}", nearest(word, known))

    def box(self, kind: str, shape: ast.expr, bounds: list[ast.expr]) -> spaces.Box:
        dtype = np.dtype(SPEC_DTYPES[kind])
        real = np.issubdtype(dtype, np.floating)
        info: Any = np.finfo(dtype) if real else np.iinfo(dtype)
        if not bounds:
            low, high = (-np.inf, np.inf) if real else (info.min, info.max)
            return spaces.Box(low, high, self.shape(shape), dtype.type)
        values = [self.number(x, float if real else int) for x in bounds]
        for bound, value in zip(bounds, values, strict=True):
            if value is None or not int(info.min) <= value <= int(info.max):
                self.fail(
                    bound, f"expected a {'' if real else 'whole '}number that {dtype} can hold"
                )
        if len(values) != 2 or not dtype.type(values[0]) < dtype.type(values[1]):
            self.fail(bounds[0], "expected two bounds, the lower one first")
        return spaces.Box(values[0], values[1], self.shape(shape), dtype.type)

    def shape(self, node: ast.expr) -> tuple[int, ...]:
        sizes = tuple(self.count(x) for x in elements(node))
        if math.prod(sizes) > MOST_VALUES:
            self.fail(node, f"more than {MOST_VALUES:,} values")
        return sizes

    def count(self, node: ast.expr) -> int:
        value = self.number(node, int)
        if value is None or not 1 <= value <= MOST_CODES:
            self.fail(node, f"expected a whole number from 1 to {MOST_CODES:,}")
        return value

    def number(self, node: ast.expr, kind: type) -> Any:
        """Return a number as `kind`; None if the node is something else."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            return None
        return value if type(value) in (int, kind) else None

    def fail(self, place: ast.expr | int, why: str, remedy: str = "") -> NoReturn:
        """Raise an error that shows the position of a node or a character."""
        start = place if isinstance(place, int) else place.col_offset
        before, after = self.text[:start], self.text[start:]
        before = before if len(before) <= SHOWN else "..." + before[-SHOWN:]
        after = after if len(after) <= SHOWN else after[:SHOWN] + "..."
        shown = f"{before}-->{after}"
        raise BadInput(f'{self.setting}: {why} at the --> in "{shown}"{remedy and "." + remedy}')


def elements(node: ast.expr) -> list[ast.expr]:
    """Return the elements between brackets."""
    return node.elts if isinstance(node, ast.Tuple) else [node]
