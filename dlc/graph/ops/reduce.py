"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.types import FLOATS, INDEX, DType
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import normal_axes, normal_axis
from dlc.graph.ops.elementwise import ANY, NUMBERS, check_dtype
from dlc.graph.ops.precision import narrow, widen
from dlc.te import tensor as te
from dlc.te.expr import (
    ONE,
    ZERO,
    BinOp,
    Expr,
    UnOp,
    both,
    cast,
    ceil_div,
    const,
    either,
    equal,
    index,
    select,
    unary,
)
from dlc.te.simplify import surely_less
from dlc.te.types import Shape, TensorType

_BINARY = {"max": BinOp.MAX, "min": BinOp.MIN, "prod": BinOp.MUL}  # the others are sums
_KINDS = (
    "sum", "mean", "max", "min", "prod", "sum_square", "l1", "l2", "l_inf", "log_sum",
    "log_sum_exp",
)  # fmt: skip
_BLOCK = 32
"""Elements of a running sum that are added up one by one; blocks of them are added up as wholes."""
_ANY_NUMBER = ("sum", "max", "min", "prod", "sum_square", "l1")


def kept_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """The shape with size 1 at the reduced axes."""
    return tuple(ONE if d in axes else n for d, n in enumerate(shape))


def reduce_kept(
    name: str,
    function: BinOp,
    x: te.Tensor,
    axes: Sequence[int],
    *others: te.Tensor,
    value: Callable[..., Expr] = lambda v: v,
) -> te.Tensor:
    """Reduce `value` of each element over `axes`, which stay with size 1.

    `others` have the kept shape; their elements are further arguments of `value`.
    """

    def element(*out: Expr) -> te.Reduce:
        def inner(*r: Expr) -> Expr:
            position = list(out)
            for d, i in zip(axes, r, strict=True):
                position[d] = i
            kept = [t[out] for t in others]
            return value(widen(x[tuple(position)]), *kept)

        return te.reduce(function, [x.shape[d] for d in axes], inner)

    return te.compute(name, kept_shape(x.shape, axes), element, inputs=(x, *others))


def count(shape: Shape, axes: Sequence[int], dtype: DType) -> Expr:
    """How many elements are reduced into one."""
    total: Expr = const(1, INDEX)
    for d in axes:
        total = total * shape[d]
    return cast(dtype, total)


def drop_axes(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """`x` without axes of size 1."""
    shape = [n for d, n in enumerate(x.shape) if d not in axes]

    def element(*out: Expr) -> Expr:
        rest = iter(out)
        return x[tuple(ZERO if d in axes else next(rest) for d in range(x.type.rank))]

    return te.compute(f"{x.name}_kept", shape, element, inputs=(x,))


@op("reduce", fuse=Fuse.REDUCTION)
class Reduce(Op):
    """Elements combined over axes. Of none: 0, or the identity of max, min and prod.

    `kind` is one of sum, mean, max, min, prod, sum_square, l1 (sum of magnitudes), l2 (root of
    the sum of squares), l_inf (the largest magnitude), log_sum, log_sum_exp. Without axes each
    element is reduced by itself.

    Source: https://onnx.ai/onnx/operators/onnx__ReduceSum.html and its siblings
    """

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = True

    def infer(self, x: TensorType) -> TensorType:
        if self.kind not in _KINDS:
            raise self.reject(f"there is no reduction '{self.kind}'", x)
        order = self.kind in ("max", "min")
        numbers = NUMBERS if self.kind in _ANY_NUMBER else FLOATS
        check_dtype(self, ANY if order else numbers, x)
        axes = normal_axes(self, self.axes, x)
        if self.keepdims:
            return TensorType(kept_shape(x.shape, axes), x.dtype)
        return TensorType(tuple(n for d, n in enumerate(x.shape) if d not in axes), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        axes = normal_axes(self, self.axes, x.type)
        kept = self._finish(x, axes)
        if kept.dtype is not x.dtype:
            kept = narrow(kept, x.dtype)
        return kept if self.keepdims else drop_axes(kept, axes)

    def _finish(self, x: te.Tensor, axes: tuple[int, ...]) -> te.Tensor:
        match self.kind:
            case "max" | "min" | "prod":
                return reduce_kept(self.name, _BINARY[self.kind], x, axes)
            case "l_inf":
                return reduce_kept(self.name, BinOp.MAX, x, axes, value=_magnitude)
            case "log_sum_exp":
                return self._log_sum_exp(x, axes)
            case "sum_square" | "l2":
                total = reduce_kept(self.name, BinOp.ADD, x, axes, value=lambda v: v * v)
            case "l1":
                total = reduce_kept(self.name, BinOp.ADD, x, axes, value=_magnitude)
            case _:
                total = reduce_kept(self.name, BinOp.ADD, x, axes)
        match self.kind:
            case "mean":
                divisor = count(x.shape, axes, total.dtype)
                return te.elementwise("mean", lambda v: v / divisor, total)
            case "l2":
                return te.elementwise("l2", lambda v: unary(UnOp.SQRT, v), total)
            case "log_sum":
                return te.elementwise("log_sum", lambda v: unary(UnOp.LOG, v), total)
        return total

    def _log_sum_exp(self, x: te.Tensor, axes: tuple[int, ...]) -> te.Tensor:
        """The maximum m, plus log(sum(exp(x - m))); an infinite max is not subtracted."""
        top = reduce_kept(f"{x.name}_max", BinOp.MAX, x, axes)
        shift = te.elementwise(f"{x.name}_shift", _finite, top)
        total = reduce_kept(
            f"{x.name}_sum", BinOp.ADD, x, axes, shift, value=lambda v, m: unary(UnOp.EXP, v - m)
        )
        return te.elementwise("log_sum_exp", lambda t, m: unary(UnOp.LOG, t) + m, total, shift)

    def reference(self, x: Array) -> Array:
        dtype = x.dtype
        (x,) = as_f64(x)
        axes = tuple(a % x.ndim for a in self.axes)
        with np.errstate(all="ignore"):
            result = self._exact(x, axes)
        return result if dtype.kind in "fV" else result.astype(dtype)

    def _exact(self, x: Array, axes: tuple[int, ...]) -> Array:
        kept = self.keepdims
        match self.kind:
            case "max" | "min":
                lowest, highest = _limits(x)
                fn, start = (np.max, lowest) if self.kind == "max" else (np.min, highest)
                return np.asarray(fn(x, axis=axes, keepdims=kept, initial=start))
            case "prod":
                return np.asarray(np.prod(x, axis=axes, keepdims=kept))
            case "sum_square":
                return np.asarray(np.sum(x * x, axis=axes, keepdims=kept))
            case "l1":
                return np.asarray(np.sum(np.abs(x), axis=axes, keepdims=kept))
            case "l2":
                return np.asarray(np.sqrt(np.sum(x * x, axis=axes, keepdims=kept)))
            case "l_inf":
                return np.asarray(np.max(np.abs(x), axis=axes, keepdims=kept, initial=-np.inf))
            case "log_sum_exp":
                top = np.max(x, axis=axes, keepdims=True, initial=-math.inf)
                top = np.where(np.isfinite(top), top, 0.0)
                rest = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True))
                return np.asarray(top + rest if kept else np.squeeze(top + rest, axes))
        total = np.asarray(np.sum(x, axis=axes, keepdims=kept))
        if self.kind == "mean":
            return np.asarray(total / math.prod(x.shape[a] for a in axes))
        return np.asarray(np.log(total)) if self.kind == "log_sum" else total


def _magnitude(v: Expr) -> Expr:
    return unary(UnOp.ABS, v) if v.dtype.is_signed else v


def _finite(v: Expr) -> Expr:
    return select(unary(UnOp.ABS, v) < math.inf, v, 0.0)


def _limits(x: Array) -> tuple[float | int, float | int]:
    if x.dtype.kind == "b":
        return False, True
    if x.dtype.kind == "f":
        return -math.inf, math.inf
    return int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)


class ArgExtreme(Op):
    """Where along an axis the extreme element is; the first NaN wins.

    Source: https://onnx.ai/onnx/operators/onnx__ArgMax.html
    """

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        axis = normal_axis(self, self.axis, x.rank, x)
        kept = kept_shape(x.shape, (axis,))
        shape = kept if self.keepdims else (*kept[:axis], *kept[axis + 1 :])
        return TensorType(shape, DType.I64)

    def search(self, x: te.Tensor, function: BinOp) -> te.Tensor:
        """The positions; `function` is max or min."""
        axis = normal_axis(self, self.axis, x.type.rank, x.type)
        top = reduce_kept(f"{x.name}_top", function, x, (axis,))
        nothing = const(-1, DType.I64) if self.select_last_index else cast(DType.I64, x.shape[axis])
        choose = BinOp.MAX if self.select_last_index else BinOp.MIN

        def element(*out: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                v = widen(x[(*out[:axis], r, *out[axis + 1 :])])
                found = equal(v, top[out])
                if v.dtype.is_float:
                    found = either(found, unary(UnOp.ISNAN, v))
                return select(found, cast(DType.I64, r), nothing)

            return te.reduce(choose, (x.shape[axis],), value)

        kept = te.compute(self.name, top.shape, element, inputs=(x, top))
        return kept if self.keepdims else drop_axes(kept, (axis,))

    def exact(self, x: Array, find: Callable[..., Array]) -> Array:
        """The positions by NumPy's `find`."""
        if self.select_last_index:
            flipped = np.asarray(find(np.flip(x, self.axis), axis=self.axis, keepdims=True))
            result = x.shape[self.axis] - 1 - flipped
        else:
            result = np.asarray(find(x, axis=self.axis, keepdims=True))
        result = result.astype(np.int64)
        return result if self.keepdims else np.asarray(np.squeeze(result, self.axis))


@op("argmax", fuse=Fuse.REDUCTION)
class ArgMax(ArgExtreme):
    """Where along an axis the largest element is."""

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False

    def compute(self, x: te.Tensor) -> te.Tensor:
        return self.search(x, BinOp.MAX)

    def reference(self, x: Array) -> Array:
        return self.exact(x, np.argmax)


@op("argmin", fuse=Fuse.REDUCTION)
class ArgMin(ArgExtreme):
    """Where along an axis the smallest element is."""

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False

    def compute(self, x: te.Tensor) -> te.Tensor:
        return self.search(x, BinOp.MIN)

    def reference(self, x: Array) -> Array:
        return self.exact(x, np.argmin)


@op("cumsum", fuse=Fuse.REDUCTION)
class CumSum(Op):
    """Running sums along an axis; `exclusive` leaves out the element itself.

    On a long axis each is the sum of the blocks before its own and of the elements before in it.

    Source: https://onnx.ai/onnx/operators/onnx__CumSum.html
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, x: TensorType) -> TensorType:
        check_dtype(self, NUMBERS, x)
        normal_axis(self, self.axis, x.rank, x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        axis = normal_axis(self, self.axis, x.type.rank, x.type)

        if not surely_less(x.shape[axis], 2 * _BLOCK):
            return narrow(self._by_blocks(x, axis), x.dtype)

        def element(*i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                v = widen(x[(*i[:axis], r, *i[axis + 1 :])])
                return select(self._counts(r, i[axis]), v, const(0, v.dtype))

            return te.reduce_sum((x.shape[axis],), value)

        return narrow(te.compute(self.name, x.shape, element, inputs=(x,)), x.dtype)

    def _by_blocks(self, x: te.Tensor, axis: int) -> te.Tensor:
        size = x.shape[axis]

        def at(i: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
            return (*i[:axis], place, *i[axis + 1 :])

        blocks = ceil_div(size, _BLOCK)

        def among(i: Sequence[Expr], block: Expr, wanted: Callable[[Expr], Expr]) -> te.Reduce:
            def value(r: Expr) -> Expr:
                place = block * _BLOCK + r
                v = widen(x[at(i, place)])
                return select(both(place < size, wanted(place)), v, const(0, v.dtype))

            return te.reduce_sum((index(_BLOCK),), value)

        def total(*i: Expr) -> te.Reduce:
            return among(i, i[axis], lambda _: const(True, DType.BOOL))

        totals = te.compute("totals", at(x.shape, blocks), total, inputs=(x,))

        def start(*i: Expr) -> te.Reduce:
            def value(r: Expr) -> Expr:
                before = i[axis] < r if self.reverse else r < i[axis]
                return select(before, totals[at(i, r)], const(0, totals.type.dtype))

            return te.reduce_sum((blocks,), value)

        starts = te.compute("starts", totals.shape, start, inputs=(totals,))

        def within(*i: Expr) -> te.Reduce:
            return among(i, i[axis] // _BLOCK, lambda place: self._counts(place, i[axis]))

        inside = te.compute("inside", x.shape, within, inputs=(x,))

        def sum_of(*i: Expr) -> Expr:
            return inside[i] + starts[at(i, i[axis] // _BLOCK)]

        return te.compute(self.name, x.shape, sum_of, inputs=(inside, starts))

    def _counts(self, place: Expr, own: Expr) -> Expr:
        """Whether the element at a place is part of the sum of one."""
        low, high = (own, place) if self.reverse else (place, own)
        return low < high if self.exclusive else low <= high

    def reference(self, x: Array) -> Array:
        dtype = x.dtype
        (x,) = as_f64(x)
        turned = np.flip(x, self.axis) if self.reverse else x
        if self.exclusive:  # infinity minus itself would be NaN
            turned = np.moveaxis(turned, self.axis, 0)
            turned = np.concatenate([np.zeros_like(turned[:1]), turned[:-1]])
            turned = np.moveaxis(turned, 0, self.axis)
        total = np.cumsum(turned, axis=self.axis)
        total = np.flip(total, self.axis) if self.reverse else total
        return total if dtype.kind in "fV" else total.astype(dtype)
