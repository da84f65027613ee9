"""Parser for spaces written as text, such as "{units: discrete(750)[12], clock: float[1]}".

    space    = dict | tuple | box | discrete | multidiscrete | multibinary | known
    dict     = "{" name ":" space { "," name ":" space } "}"
    tuple    = "(" space { "," space } ")"
    box      = dtype shape [ "(" low "," high ")" ]
    discrete = "discrete" "(" count ")" [ shape ]
    multidiscrete = "multidiscrete" "[" count { "," count } "]"
    multibinary   = "multibinary" shape
    shape    = "[" size { "," size } "]"
    known    = a name in NAMED_OBS or NAMED_ACT

Whitespace is allowed between any two tokens. `dtype` is one of SPEC_DTYPES; a name consists of
letters, digits and "_" and does not begin with a digit; counts and sizes are whole numbers >= 1.
"""

from __future__ import annotations

import math
import re
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

TOKEN = re.compile(
    r"\s*([A-Za-z_]\w*|[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\S|$)", re.ASCII
)
"""A name, a number, any other character, or the end of the text."""


def parse_space(text: object, setting: str, named: dict[str, str] | None = None) -> Space[Any]:
    """Return the space that `text` describes or names; errors begin with `setting`."""
    if not isinstance(text, str):
        raise BadInput(f'{setting} must be a text such as "float[4]", got {text!r}')
    parser = Parser(text, setting, named or {})
    space = parser.space()
    if parser.token:
        parser.fail("expected the end of the text")
    return space


class Parser:
    """Recursive-descent parser; `token` is the next token, not consumed yet."""

    def __init__(self, text: str, setting: str, named: dict[str, str]):
        self.text, self.setting, self.named = text, setting, named
        self.token = ""
        self.depth = self.start = self.end = 0
        self.advance()

    def space(self) -> Space[Any]:
        if self.depth == DEEPEST:
            self.fail(f"nested deeper than {DEEPEST}")
        self.depth += 1
        space = self.one()
        self.depth -= 1
        return space

    def one(self) -> Space[Any]:
        kind = self.token
        if kind == "{":
            return self.dictionary()
        if kind == "(":
            return spaces.Tuple(self.several("(", self.space, ")"))
        known = (*KINDS, *self.named)
        if kind not in known:
            self.fail(f"expected {{, ( or one of {', '.join(known)}", nearest(kind, known))
        self.advance()
        if kind in self.named:
            return parse_space(self.named[kind], self.setting)
        if kind == "discrete":
            return self.discrete()
        if kind == "multidiscrete":
            return spaces.MultiDiscrete(self.several("[", self.count, "]"))
        shape = self.shape()
        return spaces.MultiBinary(shape) if kind == "multibinary" else self.box(shape, kind)

    def dictionary(self) -> Space[Any]:
        parts: dict[str, Space[Any]] = {}

        def entry() -> None:
            name = self.token
            if not name.isidentifier():
                self.fail("expected a name")
            if name in parts:
                self.fail(f'duplicate name "{name}"')
            self.advance()
            self.expect(":")
            parts[name] = self.space()

        self.several("{", entry, "}")
        return spaces.Dict(parts)

    def discrete(self) -> Space[Any]:
        self.expect("(")
        count = self.count()
        self.expect(")")
        if self.token != "[":
            return spaces.Discrete(count)
        return spaces.MultiDiscrete(np.full(self.shape(), count))

    def box(self, shape: tuple[int, ...], kind: str) -> Space[Any]:
        dtype = np.dtype(SPEC_DTYPES[kind])
        real = np.issubdtype(dtype, np.floating)
        info: Any = np.finfo(dtype) if real else np.iinfo(dtype)
        if self.token != "(":
            low, high = (-np.inf, np.inf) if real else (info.min, info.max)
            return spaces.Box(low, high, shape, dtype.type)
        start = self.start
        bounds = self.several("(", lambda: self.bound(info, real), ")")
        if len(bounds) != 2 or not dtype.type(bounds[0]) < dtype.type(bounds[1]):
            self.start = start
            self.fail("expected two bounds, the lower one first")
        return spaces.Box(bounds[0], bounds[1], shape, dtype.type)

    def bound(self, info: Any, real: bool) -> Any:
        try:
            value = float(self.token) if real else int(self.token)
            fits = int(info.min) <= value <= int(info.max)
        except ValueError:
            fits = False
        if not fits:
            self.fail(f"expected a {'' if real else 'whole '}number that {info.dtype} can hold")
        self.advance()
        return value

    def shape(self) -> tuple[int, ...]:
        start = self.start
        sizes = tuple(self.several("[", self.count, "]"))
        if math.prod(sizes) > MOST_VALUES:
            self.start = start
            self.fail(f"more than {MOST_VALUES:,} values")
        return sizes

    def count(self) -> int:
        try:
            value = int(self.token)
        except ValueError:
            value = 0
        if not 1 <= value <= MOST_CODES:
            self.fail("expected a whole number >= 1" if value < 1 else f"more than {MOST_CODES:,}")
        self.advance()
        return value

    def several(self, opening: str, item: Any, closing: str) -> list[Any]:
        """Parse one or more comma-separated items between two tokens."""
        self.expect(opening)
        found = [item()]
        while self.token == ",":
            self.advance()
            found.append(item())
        self.expect(closing, " or ,")
        return found

    def expect(self, token: str, other: str = "") -> None:
        if self.token != token:
            self.fail(f"expected {token}{other}")
        self.advance()

    def advance(self) -> None:
        """Go to the next token; "" is the end of the text."""
        match = TOKEN.match(self.text, self.end)
        assert match is not None
        self.token, self.start, self.end = match[1], match.start(1), match.end()

    def fail(self, why: str, remedy: str = "") -> NoReturn:
        before, after = self.text[: self.start], self.text[self.start :]
        before = before if len(before) <= SHOWN else "..." + before[-SHOWN:]
        after = after if len(after) <= SHOWN else after[:SHOWN] + "..."
        shown = " ".join(f"{before}-->{after}".split())
        raise BadInput(f'{self.setting}: {why} at the --> in "{shown}"{remedy and "." + remedy}')
