"""Arithmetic of specs, such as `frames / seconds`: parsed by Python, evaluated without eval()."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from rookery.errors import BadInput, nearest

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
        if len(self.text) > MAX_LENGTH:
            raise BadInput(f"the expression is longer than {MAX_LENGTH} characters")
        try:
            self._root = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise BadInput(f'"{self.text}" is not an expression') from None
        self.names: set[str] = set()
        self._check(self._root)

    def _check(self, node: ast.AST) -> None:
        """Collect the names; BadInput for anything but arithmetic."""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return
            case ast.Name(id=name):
                self.names.add(name)
                return
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                inner = [left, right]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                inner = [operand]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                self._check_call(name, len(args))
                inner = args
            case _:
                raise BadInput(
                    f'"{ast.unparse(node)}" in "{self.text}": only numbers, names, + - * / // % **,'
                    f" parentheses and {', '.join(FUNCTIONS)} are allowed"
                )
        for part in inner:
            self._check(part)

    def _check_call(self, name: str, count: int) -> None:
        if name not in FUNCTIONS:
            raise BadInput(f'unknown function "{name}".{nearest(name, FUNCTIONS)}')
        _, fewest, most = FUNCTIONS[name]
        if not fewest <= count <= most:
            raise BadInput(f'"{self.text}": {name} does not take {count} arguments')

    def evaluate(self, values: Mapping[str, float]) -> float:
        """Return the value of the formula; BadInput if it has none, as with division by zero."""
        try:
            result = self._value(self._root, values)
        except ZeroDivisionError:
            raise BadInput(f'"{self.text}": division by zero') from None
        except OverflowError:
            raise BadInput(f'"{self.text}": the result is too large') from None
        except ValueError:  # sqrt(-1), log(0)
            raise BadInput(
                f'"{self.text}": square root or logarithm of a number that has none'
            ) from None
        if not math.isfinite(result):
            raise BadInput(f'"{self.text}" is {result}')
        return result

    def _value(self, node: ast.AST, values: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(id=name):
                if name not in values:
                    raise BadInput(
                        f'"{name}" in "{self.text}": unknown name.{nearest(name, values)}'
                    )
                return float(values[name])
            case ast.BinOp(left=left, op=op, right=right):
                result = OPERATORS[type(op)](self._value(left, values), self._value(right, values))
            case ast.UnaryOp(op=op, operand=operand):
                result = OPERATORS[type(op)](self._value(operand, values))
            case ast.Call(func=ast.Name(id=name), args=args):
                result = FUNCTIONS[name][0](*(self._value(part, values) for part in args))
            case _:
                raise AssertionError(ast.dump(node))
        if isinstance(result, complex):  # (-8) ** 0.5
            raise BadInput(f'"{self.text}": a power of a negative number that is not real')
        return result
