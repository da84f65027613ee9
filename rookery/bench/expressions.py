"""Arithmetic in specs: `frames / seconds`, read by Python's parser and never run by Python."""

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
    """A formula over names. All numbers are floats, so no power or product grows without end."""

    def __init__(self, text: str):
        self.text = " ".join(text.split())
        if len(self.text) > MAX_LENGTH:
            raise BadInput(f"the expression is longer than {MAX_LENGTH} characters")
        try:
            self._root = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise BadInput(f'"{self.text}" is no expression') from None
        self.names: set[str] = set()
        self._check(self._root)

    def _check(self, node: ast.AST) -> None:
        """Refuse whatever is not arithmetic, and gather the names."""
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
                    f'"{ast.unparse(node)}" in "{self.text}": numbers, names, + - * / // % **,'
                    f" parentheses and {', '.join(FUNCTIONS)} are all there is"
                )
        for part in inner:
            self._check(part)

    def _check_call(self, name: str, count: int) -> None:
        if name not in FUNCTIONS:
            raise BadInput(f'"{name}": no such function.{nearest(name, FUNCTIONS)}')
        _, fewest, most = FUNCTIONS[name]
        if not fewest <= count <= most:
            raise BadInput(f'"{self.text}": {name} does not take {count} values')

    def evaluate(self, values: Mapping[str, float]) -> float:
        """The value of the formula, or BadInput with the reason there is none."""
        try:
            result = self._value(self._root, values)
        except ZeroDivisionError:
            raise BadInput(f'"{self.text}": division by zero') from None
        except OverflowError:
            raise BadInput(f'"{self.text}": a number too large') from None
        except ValueError:  # sqrt(-1), log(0)
            raise BadInput(f'"{self.text}": a root or logarithm of what has none') from None
        if not math.isfinite(result):
            raise BadInput(f'"{self.text}" is {result}')
        return result

    def _value(self, node: ast.AST, values: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(id=name):
                if name not in values:
                    raise BadInput(f'"{name}" in "{self.text}": unknown.{nearest(name, values)}')
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
