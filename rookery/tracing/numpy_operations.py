"""Operations of torch in calls of NumPy.

A translation leads from where the result goes, and the arguments of an operation, to the steps that
do it. Arguments that it does not name are not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

aten = torch.ops.aten
PRODUCT = 1 << 18
"""Multiplications in a product of matrices from which on it is left to torch and its threads."""

Array = np.ndarray
Step = Callable[[], Any]
Steps = Iterator[Step]


class Untranslated(Exception):
    """There is an operation that is not done here."""


TRANSLATIONS: dict[Any, Callable[..., Iterable[Step]]] = {}


def does(*operations: Any) -> Callable[[Callable], Callable]:
    """Decorator: a translation of these operations."""

    def add(translate: Callable) -> Callable:
        TRANSLATIONS.update(dict.fromkeys(operations, translate))
        return translate

    return add


def spread(x: Array | float, like: Array) -> Array:
    """A number in every entry, for NumPy is slow to take the same one many times."""
    if isinstance(x, Array):
        return x
    return np.full(like.shape, x, np.result_type(like.dtype, x))


def refuse_narrow(out: Array, *given: Array) -> None:
    """NumPy computes in the types that it is given, torch in that of the result."""
    if all(x.dtype != out.dtype for x in given):
        raise Untranslated("a result of another type than all that it is made of")


def elementwise(function: Callable, *operations: Any) -> None:
    """Translate operations that apply a function of NumPy to one or two arguments."""

    def unary(out: Array, x: Array) -> Steps:
        refuse_narrow(out, x)
        yield partial(function, x, out=out)

    def binary(out: Array, x: Array, y: Array | float) -> Steps:
        y = spread(y, x)
        refuse_narrow(out, x, y)
        yield partial(function, x, y, out=out)

    is_unary = getattr(function, "nin", 1) == 1
    does(*operations)(unary if is_unary else binary)


def comparison(function: Callable, *operations: Any) -> None:
    """Translate operations that compare with a function of NumPy."""

    def compare(out: Array, x: Array, y: Array | float) -> Steps:
        y = spread(y, x)
        if x.dtype != y.dtype:
            raise Untranslated("a comparison of two types")
        yield partial(function, x, y, out=out)

    does(*operations)(compare)


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
elementwise(np.tanh, aten.tanh.default, aten.tanh_.default)


@does(aten.logical_not.default)
def logical_not(out: Array, x: Array) -> Steps:
    yield partial(np.logical_not, x, out=out)


@does(aten.pow.Tensor_Scalar)
def power(out: Array, x: Array, exponent: float) -> Steps:
    refuse_narrow(out, x)
    if exponent == 1:
        yield partial(np.copyto, out, x)
    elif exponent == 2:
        yield partial(np.multiply, x, x, out=out)
    else:
        raise Untranslated("another power than the first or second")


@does(aten.relu.default, aten.relu_.default)
def relu(out: Array, x: Array) -> Steps:
    yield partial(np.maximum, x, np.zeros_like(x), out=out)


@does(aten.threshold_backward.default)
def threshold_backward(out: Array, grad: Array, x: Array, threshold: float) -> Steps:
    above = np.empty(x.shape, bool)
    yield partial(np.greater, x, spread(threshold, x), out=above)
    yield partial(np.multiply, grad, above, out=out)


@does(aten.tanh_backward.default)
def tanh_backward(out: Array, grad: Array, y: Array) -> Steps:
    slope = np.empty_like(y)
    yield partial(np.multiply, y, y, out=slope)
    yield partial(np.subtract, np.ones_like(y), slope, out=slope)
    yield partial(np.multiply, grad, slope, out=out)


@does(aten.sigmoid.default, aten.sigmoid_.default)
def sigmoid(out: Array, x: Array) -> Steps:
    refuse_narrow(out, x)
    ones = np.ones_like(x)
    yield partial(np.negative, x, out=out)
    yield partial(np.exp, out, out=out)
    yield partial(np.add, ones, out, out=out)
    yield partial(np.divide, ones, out, out=out)


@does(aten.clamp.default, aten.clamp_.default)
def clamp(out: Array, x: Array, min: float | None = None, max: float | None = None) -> Steps:
    if min is not None:
        yield partial(np.maximum, x, spread(min, x), out=out)
        x = out
    if max is not None:
        yield partial(np.minimum, x, spread(max, x), out=out)


@does(aten.where.self)
def where(out: Array, condition: Array, x: Array, y: Array) -> Steps:
    yield partial(np.copyto, out, y)
    yield partial(np.copyto, out, x, where=condition)


@does(aten.addcmul.default)
def addcmul(out: Array, x: Array, a: Array, b: Array, value: float = 1) -> Steps:
    product = np.empty(np.broadcast_shapes(a.shape, b.shape), out.dtype)
    refuse_narrow(product, a, b)
    yield partial(np.multiply, a, b, out=product)
    if value != 1:
        yield partial(np.multiply, product, spread(value, product), out=product)
    yield partial(np.add, x, product, out=out)


def product(a: Array, b: Array, out: Array) -> Step:
    """A product of matrices."""
    if not out.flags.c_contiguous:
        raise Untranslated("a product that does not lie row by row")
    if a.shape[0] * a.shape[1] * b.shape[1] <= PRODUCT:
        return partial(np.dot, a, b, out)
    return partial(torch.mm, *map(torch.from_numpy, (a, b)), out=torch.from_numpy(out))


@does(aten.mm.default)
def mm(out: Array, a: Array, b: Array) -> Steps:
    yield product(a, b, out)


@does(aten.addmm.default)
def addmm(out: Array, bias: Array, a: Array, b: Array) -> Steps:
    yield product(a, b, out)
    yield partial(np.add, out, bias, out=out)


@does(aten.addmm_.default)
def addmm_(out: Array, to: Array, a: Array, b: Array) -> Steps:
    added = np.empty(to.shape, to.dtype)
    yield product(a, b, added)
    yield partial(np.add, to, added, out=out)


@does(aten.linear.default)
def linear(out: Array, x: Array, weight: Array, bias: Array | None = None) -> Steps:
    if x.ndim != 2:
        raise Untranslated("linear of more than two dimensions")
    yield product(x, weight.T, out)
    if bias is not None:
        yield partial(np.add, out, bias, out=out)


@does(aten.dot.default)
def dot(out: Array, a: Array, b: Array) -> Steps:
    yield partial(np.dot, a, b, out)


@does(aten.sum.default, aten.sum.dim_IntList)
def sum_over(
    out: Array, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Steps:
    if x.ndim == 2 and list(dim or ()) == [0] and x.flags.c_contiguous and x.dtype == out.dtype:
        yield partial(np.dot, np.ones(len(x), x.dtype), x, out.reshape(-1))
    else:
        axes = tuple(axis % x.ndim for axis in dim) if dim else None
        yield partial(np.add.reduce, x, axes, out.dtype, out, keepdim)


@does(aten.mean.default, aten.mean.dim)
def mean_over(
    out: Array, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Steps:
    yield from sum_over(out, x, dim, keepdim)
    yield partial(np.multiply, out, spread(out.size / x.size, out), out=out)


@does(aten.amax.default)
def amax(out: Array, x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Steps:
    axes = tuple(axis % x.ndim for axis in dim) or None
    yield partial(np.maximum.reduce, x, axes, None, out, keepdim)


@does(aten.argmax.default)
def argmax(out: Array, x: Array, dim: int | None = None) -> Steps:
    yield partial(x.argmax, dim, out)


@does(aten.stack.default)
def stack(out: Array, parts: Sequence[Array], dim: int = 0) -> Steps:
    places = np.moveaxis(out, dim, 0)
    for i, part in enumerate(parts):
        yield partial(np.copyto, places[i, ...], part)


@does(aten.cat.default)
def cat(out: Array, parts: Sequence[Array], dim: int = 0) -> Steps:
    ends = np.cumsum([part.shape[dim] for part in parts])
    for place, part in zip(np.split(out, ends[:-1], dim), parts, strict=True):
        yield partial(np.copyto, place, part)


@does(aten.zero_.default)
def zero_(out: Array, x: Array) -> Steps:
    yield partial(x.fill, 0)


@does(aten.copy_.default)
def copy_(out: Array, to: Array, x: Array) -> Steps:
    yield partial(np.copyto, to, x, "unsafe")


@does(aten.clone.default, aten._to_copy.default, aten.to.dtype)
def copied(out: Array, x: Array, dtype: Any = None, memory_format: Any = None) -> Steps:
    yield partial(np.copyto, out, x, "unsafe")


def entries(index: Array, x: Array, dim: int) -> tuple[Array, Steps]:
    """Where the entries of the rows of `x` stand in its memory, and the steps that say so."""
    if x.ndim != 2 or dim % 2 != 1 or not x.flags.c_contiguous:
        raise Untranslated("entries of anything but the rows of a matrix")
    place = np.empty(index.shape, np.int64)
    starts = np.arange(len(x))[:, None] * x.shape[1]
    return place, iter([partial(np.add, index, starts, out=place)])


@does(aten.gather.default)
def gather(out: Array, x: Array, dim: int, index: Array) -> Steps:
    place, steps = entries(index, x, dim)
    yield from steps
    yield partial(x.reshape(-1).take, place, None, out)


@does(aten.scatter_add.default)
def scatter_add(out: Array, x: Array, dim: int, index: Array, added: Array) -> Steps:
    place, steps = entries(index, out, dim)
    if index.shape != (len(x), 1) or added.shape != index.shape:
        raise Untranslated("scatter_add of several entries a row")
    sums = np.empty(index.shape, out.dtype)
    yield from steps
    yield partial(np.copyto, out, x)
    yield partial(out.reshape(-1).take, place, None, sums)
    yield partial(np.add, sums, added, out=sums)
    yield partial(out.reshape(-1).put, place, sums)


@does(aten._log_softmax.default)
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


@does(aten._log_softmax_backward_data.default)
def log_softmax_backward(out: Array, grad: Array, y: Array, dim: int, dtype: Any) -> Steps:
    axis = dim % y.ndim
    column = np.empty_like(y[(slice(None),) * axis + (slice(1),)])
    yield partial(np.add.reduce, grad, axis, None, column, True)
    yield partial(np.exp, y, out=out)
    yield partial(np.multiply, out, column, out=out)
    yield partial(np.subtract, grad, out, out=out)


NO_REDUCTION = 0


@does(aten.mse_loss.default)
def mse_loss(out: Array, x: Array, y: Array, reduction: int) -> Steps:
    refuse_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.multiply, out, out, out=out)


@does(aten.mse_loss_backward.default)
def mse_loss_backward(out: Array, grad: Array, x: Array, y: Array, reduction: int) -> Steps:
    refuse_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.add, out, out, out=out)
    yield partial(np.multiply, grad, out, out=out)


@does(aten.huber_loss.default)
def huber_loss(out: Array, x: Array, y: Array, reduction: int, delta: float = 1.0) -> Steps:
    """q (|e| - q / 2) with q = min(|e|, delta)."""
    refuse_reduction(reduction)
    near = np.empty_like(out)
    yield partial(np.subtract, x, y, out=out)
    yield partial(np.absolute, out, out=out)
    yield partial(np.minimum, out, spread(delta, out), out=near)
    yield partial(np.subtract, out, near, out=out)
    yield partial(np.multiply, out, near, out=out)
    yield partial(np.multiply, near, near, out=near)
    yield partial(np.multiply, near, spread(0.5, near), out=near)
    yield partial(np.add, out, near, out=out)


@does(aten.huber_loss_backward.default)
def huber_loss_backward(
    out: Array, grad: Array, x: Array, y: Array, reduction: int, delta: float
) -> Steps:
    refuse_reduction(reduction)
    yield partial(np.subtract, x, y, out=out)
    yield from clamp(out, out, -delta, delta)
    yield partial(np.multiply, grad, out, out=out)


def refuse_reduction(reduction: int) -> None:
    """A loss is computed entry by entry."""
    if reduction != NO_REDUCTION:
        raise Untranslated("a loss that is summed up")
