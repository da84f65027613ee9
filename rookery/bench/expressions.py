"""Arithmetic of specs, such as `frames / seconds`: parsed by Python, evaluated without eval()."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from rookery.errors import BadInput, nearest, require

MAX_LENGTH = 500
OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    "min": (lambda *values: min(values), 1, MAX_LENGTH),
    "max": (lambda *values: max(values), 1, MAX_LENGTH),
    "abs": (abs, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 2),
}
"""Each function with the fewest and the most arguments it takes."""


class Expression:
    """A formula with named values. All numbers are floats, which bounds the size of results."""

    def __init__(self, text: str):
        self.text = " ".join(text.split())
        short = len(self.text) <= MAX_LENGTH
        require(short, f"the expression is longer than {MAX_LENGTH} characters")
        try:
            root = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise BadInput(f'"{self.text}" is not an expression') from None
        self.names: set[str] = set()
        self._value = self._compile(root)

    def _compile(self, node: ast.AST) -> Callable[[Mapping[str, float]], float]:
        """Return a function from the named values to the value of `node`, and collect the names;
        BadInput for anything but arithmetic."""
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda values: float(number)
            case ast.Name(id=name):
                self.names.add(name)
                return lambda values: self._look_up(name, values)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                function, parts = OPERATORS[type(op)], [left, right]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                function, parts = OPERATORS[type(op)], [operand]
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
                require(name in FUNCTIONS, f'unknown function "{name}".{nearest(name, FUNCTIONS)}')
                function, fewest, most = FUNCTIONS[name]
                fits = fewest <= len(parts) <= most
                require(fits, f'"{self.text}": {name} does not take {len(parts)} arguments')
            case _:
                raise BadInput(
                    f'"{ast.unparse(node)}" in "{self.text}": only numbers, names, + - * / // % **,'
                    f" parentheses and {', '.join(FUNCTIONS)} are allowed"
                )
        inner = [self._compile(part) for part in parts]

        def apply(values: Mapping[str, float]) -> float:
            result = function(*(part(values) for part in inner))
            if isinstance(result, complex):  # (-8) ** 0.5
                raise BadInput(f'"{self.text}": a power of a negative number that is not real')
            return result

        return apply

    def _look_up(self, name: str, values: Mapping[str, float]) -> float:
        if name not in values:
            raise BadInput(f'"{name}" in "{self.text}": unknown name.{nearest(name, values)}')
        return float(values[name])

    def evaluate(self, values: Mapping[str, float]) -> float:
        """Return the value of the formula; BadInput if it has none, as with division by zero."""
        try:
            result = self._value(values)
        except ZeroDivisionError:
            raise BadInput(f'"{self.text}": division by zero') from None
        except OverflowError:
            raise BadInput(f'"{self.text}": the result is too large') from None
        except ValueError:  # sqrt(-1), log(0)
            raise BadInput(
                f'"{self.text}": square root or logarithm of a number that has none'
            ) from None
        require(math.isfinite(result), f'"{self.text}" is {result}')
        return result
