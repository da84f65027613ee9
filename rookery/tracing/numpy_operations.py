"""PyTorch operations as calls of NumPy.

A translation takes the array for the result and the arguments of an operation, and yields the steps
that compute it. Arguments that it does not name are not supported, nor is what it raises
`Untranslated` for: PyTorch computes these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

aten = torch.ops.aten
PRODUCT = 1 << 18
"""Multiplications in a matrix product above which PyTorch, with its threads, is faster."""

Array = np.ndarray
Step = Callable[[], Any]
Steps = Iterator[Step]


class Untranslated(Exception):
    """An operation or its arguments have no translation."""


TRANSLATIONS: dict[Any, Callable[..., Iterable[Step]]] = {}


def translates(*operations: Any) -> Callable[[Callable], Callable]:
    """Decorator: registers a translation of these operations."""

    def add(translate: Callable) -> Callable:
        TRANSLATIONS.update(dict.fromkeys(operations, translate))
        return translate

    return add


def filled(x: Array | float, like: Array) -> Array:
    """Return an array filled with the number `x`: NumPy is slow to convert numbers every time."""
    if isinstance(x, Array):
        return x
    return np.full(like.shape, x, np.result_type(like.dtype, x))


def require_dtype(out: Array, *given: Array) -> None:
    """Raise if no argument has the result's type: NumPy computes in the types of the arguments,
    PyTorch in that of the result."""
    if all(x.dtype != out.dtype for x in given):
        raise Untranslated("no argument has the result's type")


def elementwise(function: Callable, *operations: Any) -> None:
    """Register a NumPy function of one or two arguments for these operations."""

    def unary(out: Array, x: Array) -> Steps:
        require_dtype(out, x)
        yield partial(function, x, out=out)

    def binary(out: Array, x: Array, y: Array | float) -> Steps:
        y = filled(y, x)
        require_dtype(out, x, y)
        yield partial(function, x, y, out=out)

    is_unary = getattr(function, "nin", 1) == 1
    translates(*operations)(unary if is_unary else binary)


def comparison(function: Callable, *operations: Any) -> None:
    """Register a NumPy comparison for these operations."""

    def compare(out: Array, x: Array, y: Array | float) -> Steps:
        y = filled(y, x)
        if x.dtype != y.dtype:
            raise Untranslated("a comparison of different types")
        yield partial(function, x, y, out=out)

    translates(*operations)(compare)


elementwise(np.add, aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar, aten.add_.Scalar)
elementwise(np.subtract, aten.sub.Tensor, aten.sub_.Tensor, aten.sub.Scalar, aten.sub_.Scalar)
elementwise(np.multiply, aten.mul.Tensor, aten.mul_.Tensor, aten.mul.Scalar, aten.mul_.Scalar)
elementwise(np.divide, aten.div.Tensor, aten.div_.Tensor, aten.div.Scalar, aten.div_.Scalar)
elementwise(np.maximum, aten.maximum.default, aten.clamp_min.default, aten.clamp_min_.default)
elementwise(np.minimum, aten.minimum.default, aten.clamp_max.default, aten.clamp_max_.default)
comparison(np.less, aten.lt.Tensor, aten.lt.Scalar)
comparison(np.less_equal, aten.le.Tensor, aten.le.Scalar)
comparison(np.greater, aten.gt.Tensor, aten.gt.Scalar)
comparison(np.greater_equal, aten.ge.Tensor, aten.ge.Scalar)
comparison(np.equal, aten.eq.Tensor, aten.eq.Scalar)
comparison(np.not_equal, aten.ne.Tensor, aten.ne.Scalar)
elementwise(np.negative, aten.neg.default, aten.neg_.default)
elementwise(np.absolute, aten.abs.default, aten.abs_.default)
elementwise(np.sign, aten.sign.default, aten.sgn.default)
elementwise(np.exp, aten.exp.default, aten.exp_.default)
elementwise(np.log, aten.log.default, aten.log_.default)
elementwise(np.sqrt, aten.sqrt.default, aten.sqrt_.default)
elementwise(np.logical_not, aten.logical_not.default)
elementwise(np.tanh, aten.tanh.default, aten.tanh_.default)


@translates(aten.pow.Tensor_Scalar)
def power(out: Array, x: Array, exponent: float) -> Steps:
    require_dtype(out, x)
    if exponent == 1:
        yield partial(np.copyto, out, x)
    elif exponent == 2:
        yield partial(np.multiply, x, x, out=out)
    else:
        raise Untranslated("a power other than 1 or 2")


@translates(aten.relu.default, aten.relu_.default)
def relu(out: Array, x: Array) -> Steps:
    yield partial(np.maximum, x, np.zeros_like(x), out=out)


@translates(aten.threshold_backward.default)
def threshold_backward(out: Array, grad: Array, x: Array, threshold: float) -> Steps:
    above = np.empty(x.shape, bool)
    yield partial(np.greater, x, filled(threshold, x), out=above)
    yield partial(np.multiply, grad, above, out=out)


@translates(aten.tanh_backward.default)
def tanh_backward(out: Array, grad: Array, y: Array) -> Steps:
    slope = np.empty_like(y)
    yield partial(np.multiply, y, y, out=slope)
    yield partial(np.subtract, np.ones_like(y), slope, out=slope)
    yield partial(np.multiply, grad, slope, out=out)


@translates(aten.sigmoid.default, aten.sigmoid_.default)
def sigmoid(out: Array, x: Array) -> Steps:
    require_dtype(out, x)
    ones = np.ones_like(x)
    yield partial(np.negative, x, out=out)
    yield partial(np.exp, out, out=out)
    yield partial(np.add, ones, out, out=out)
    yield partial(np.divide, ones, out, out=out)


@translates(aten.clamp.default, aten.clamp_.default)
def clamp(out: Array, x: Array, min: float | None = None, max: float | None = None) -> Steps:
    if min is not None:
        yield partial(np.maximum, x, filled(min, x), out=out)
        x = out
    if max is not None:
        yield partial(np.minimum, x, filled(max, x), out=out)


@translates(aten.where.self)
def where(out: Array, condition: Array, x: Array, y: Array) -> Steps:
    yield partial(np.copyto, out, y)
    yield partial(np.copyto, out, x, where=condition)


@translates(aten.addcmul.default)
def addcmul(out: Array, x: Array, a: Array, b: Array, value: float = 1) -> Steps:
    product = np.empty(np.broadcast_shapes(a.shape, b.shape), out.dtype)
    require_dtype(product, a, b)
    yield partial(np.multiply, a, b, out=product)
    if value != 1:
        yield partial(np.multiply, product, filled(value, product), out=product)
    yield partial(np.add, x, product, out=out)


def matrix_product(a: Array, b: Array, out: Array) -> Step:
    """Return the step that computes `a @ b`."""
    if not out.flags.c_contiguous:
        raise Untranslated("a product that is not contiguous")
    if a.shape[0] * a.shape[1] * b.shape[1] <= PRODUCT:
        return partial(np.dot, a, b, out)
    return partial(torch.mm, *map(torch.from_numpy, (a, b)), out=torch.from_numpy(out))


@translates(aten.mm.default)
def mm(out: Array, a: Array, b: Array) -> Steps:
    yield matrix_product(a, b, out)


@translates(aten.addmm.default)
def addmm(out: Array, bias: Array, a: Array, b: Array) -> Steps:
    yield matrix_product(a, b, out)
    yield partial(np.add, out, bias, out=out)


@translates(aten.linear.default)
def linear(out: Array, x: Array, weight: Array, bias: Array | None = None) -> Steps:
    if x.ndim != 2:
        raise Untranslated("linear with more than two dimensions")
    yield matrix_product(x, weight.T, out)
    if bias is not None:
        yield partial(np.add, out, bias, out=out)


@translates(aten.dot.default)
def dot(out: Array, a: Array, b: Array) -> Steps:
    yield partial(np.dot, a, b, out)


@translates(aten.sum.default, aten.sum.dim_IntList)
def sum_over(
    out: Array, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Steps:
    if x.ndim == 2 and list(dim or ()) == [0] and x.flags.c_contiguous and x.dtype == out.dtype:
        yield partial(np.dot, np.ones(len(x), x.dtype), x, out.reshape(-1))
    else:
        axes = tuple(axis % x.ndim for axis in dim) if dim else None
        yield partial(np.add.reduce, x, axes, out.dtype, out, keepdim)


@translates(aten.mean.default, aten.mean.dim)
def mean_over(
    out: Array, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Steps:
    yield from sum_over(out, x, dim, keepdim)
    yield partial(np.multiply, out, filled(out.size / x.size, out), out=out)


@translates(aten.amax.default)
def amax(out: Array, x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Steps:
    axes = tuple(axis % x.ndim for axis in dim) or None
    yield partial(np.maximum.reduce, x, axes, None, out, keepdim)


@translates(aten.argmax.default)
def argmax(out: Array, x: Array, dim: int | None = None) -> Steps:
    yield partial(x.argmax, dim, out)


@translates(aten.stack.default)
def stack(out: Array, parts: Sequence[Array], dim: int = 0) -> Steps:
    yield from cat(out, [np.expand_dims(part, dim) for part in parts], dim)


@translates(aten.cat.default)
def cat(out: Array, parts: Sequence[Array], dim: int = 0) -> Steps:
    yield partial(np.concatenate, parts, dim, out)


@translates(aten.zero_.default)
def zero_(out: Array, x: Array) -> Steps:
    yield partial(x.fill, 0)


@translates(aten.copy_.default)
def copy_(out: Array, to: Array, x: Array) -> Steps:
    yield partial(np.copyto, to, x, "unsafe")


@translates(aten.clone.default, aten._to_copy.default, aten.to.dtype)
def copied(out: Array, x: Array, dtype: Any = None, memory_format: Any = None) -> Steps:
    yield partial(np.copyto, out, x, "unsafe")


def flat_index(index: Array, x: Array, dim: int) -> tuple[Array, Step]:
    """Return an array for the flat indices of entries in the rows of `x`, and the step that
    computes them."""
    if x.ndim != 2 or dim % 2 != 1 or not x.flags.c_contiguous:
        raise Untranslated("an index into anything but the rows of a matrix")
    place = np.empty(index.shape, np.int64)
    starts = np.arange(len(x))[:, None] * x.shape[1]
    return place, partial(np.add, index, starts, out=place)


@translates(aten.gather.default)
def gather(out: Array, x: Array, dim: int, index: Array) -> Steps:
    place, step = flat_index(index, x, dim)
    yield step
    yield partial(x.reshape(-1).take, place, None, out)


@translates(aten.scatter_add.default)
def scatter_add(out: Array, x: Array, dim: int, index: Array, added: Array) -> Steps:
    place, step = flat_index(index, out, dim)
    if index.shape != (len(x), 1) or added.shape != index.shape:
        raise Untranslated("scatter_add of several entries per row")
    sums = np.empty(index.shape, out.dtype)
    yield step
    yield partial(np.copyto, out, x)
    yield partial(out.reshape(-1).take, place, None, sums)
    yield partial(np.add, sums, added, out=sums)
    yield partial(out.reshape(-1).put, place, sums)


@translates(aten._log_softmax.default)
def log_softmax(out: Array, x: Array, dim: int, half_to_float: bool) -> Steps:
    axis = dim % x.ndim
    powers = np.empty_like(x)
    column = np.empty_like(x[(slice(None),) * axis + (slice(1),)])
    yield partial(np.maximum.reduce, x, axis, None, column, True)
    yield partial(np.subtract, x, column, out=out)
    yield partial(np.exp, out, out=powers)
    yield partial(np.add.reduce, powers, axis, None, column, True)
    yield partial(np.log, column, out=column)
    yield partial(np.subtract, out, column, out=out)


@translates(aten._log_softmax_backward_data.default)
def log_softmax_backward(out: Array, grad: Array, y: Array, dim: int, dtype: Any) -> Steps:
    axis = dim % y.ndim
    column = np.empty_like(y[(slice(None),) * axis + (slice(1),)])
    yield partial(np.add.reduce, grad, axis, None, column, True)
    yield partial(np.exp, y, out=out)
    yield partial(np.multiply, out, column, out=out)
    yield partial(np.subtract, grad, out, out=out)


NO_REDUCTION = 0


@translates(aten.mse_loss.default)
def mse_loss(out: Array, x: Array, y: Array, reduction: int) -> Steps:
    require_no_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.multiply, out, out, out=out)


@translates(aten.mse_loss_backward.default)
def mse_loss_backward(out: Array, grad: Array, x: Array, y: Array, reduction: int) -> Steps:
    require_no_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.add, out, out, out=out)
    yield partial(np.multiply, grad, out, out=out)


@translates(aten.huber_loss.default)
def huber_loss(out: Array, x: Array, y: Array, reduction: int, delta: float = 1.0) -> Steps:
    """q (|e| - q / 2) with q = min(|e|, delta) and e = x - y."""
    require_no_reduction(reduction)
    near = np.empty_like(out)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.absolute, out, out=out)
    yield partial(np.minimum, out, filled(delta, out), out=near)
    yield partial(np.subtract, out, near, out=out)
    yield partial(np.multiply, out, near, out=out)
    yield partial(np.multiply, near, near, out=near)
    yield partial(np.multiply, near, filled(0.5, near), out=near)
    yield partial(np.add, out, near, out=out)


@translates(aten.huber_loss_backward.default)
def huber_loss_backward(
    out: Array, grad: Array, x: Array, y: Array, reduction: int, delta: float
) -> Steps:
    require_no_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield from clamp(out, out, -delta, delta)
    yield partial(np.multiply, grad, out, out=out)


def require_no_reduction(reduction: int) -> None:
    """Raise if the loss is summed or averaged."""
    if reduction != NO_REDUCTION:
        raise Untranslated("a loss with a reduction")
