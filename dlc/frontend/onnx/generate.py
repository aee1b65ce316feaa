"""Converters of operators that make or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to, number_type
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Div, Equal, Less, Maximum, Mul, Sub, Where
from dlc.graph.ops.elementwise import Abs, Ceil
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import OneHot, Trilu
from dlc.graph.ops.shape import Expand, Tile
from dlc.te.expr import ONE, ZERO, Const, Expr, equal, index, maximum, minimum, select
from dlc.te.simplify import (
    canonical,
    surely_at_most,
    surely_differ,
    surely_equal,
    surely_less,
)
from dlc.te.transform import free_vars, loads


@converter("Constant", since=1)
def convert_constant(
    ctx: Context,
    *,
    sparse_value: Array | None = None,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Value:
    """A constant, in whichever attribute it stands."""
    given: tuple[tuple[object, type], ...] = (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, np.object_),
        (value_strings, np.object_),
    )
    for array in (value, sparse_value):
        if array is not None:
            return ctx.constant(array)
    for number, kind in given:
        if number is not None:
            return ctx.constant(np.array(number, kind))
    ctx.refuse("it has no value")


@converter("ConstantOfShape", since=9)
def convert_constant_of_shape(ctx: Context, shape: Value, *, value: Array | None = None) -> Value:
    """One element, repeated."""
    sizes = ctx.need_sizes(shape, "the shape")
    if value is not None and value.size != 1:
        ctx.refuse(f"its value has {value.size} elements, not one")
    element = np.zeros((), np.float32) if value is None else value.reshape(())
    return fill(ctx, element, sizes)


def fill(ctx: Context, element: Array, sizes: Sequence[Expr]) -> Value:
    """A tensor of one element repeated; a fixed shape makes a constant, which takes no memory."""
    for size in sizes:
        if surely_less(size, 0):
            ctx.refuse(f"size {size} is negative")
    if all(isinstance(s, Const) for s in sizes):
        shape = tuple(int(s.value) for s in sizes if isinstance(s, Const))
        if math.prod(max(n, 1) for n in shape) * element.itemsize > ctx.limits.tensor_bytes:
            ctx.refuse(f"a tensor of shape {list(shape)} is beyond all limits")
        return ctx.constant(np.broadcast_to(element, shape))
    return ctx.call(Expand(shape=tuple(sizes)), ctx.constant(element))


def check_elems(ctx: Context, count: float) -> None:
    """Refuse to make a constant that no model needs."""
    if count * 8 > ctx.limits.tensor_bytes or count > _MAX_MADE:
        ctx.refuse(f"it makes a constant of {count:.0f} elements")


_MAX_MADE = 1 << 26
"""Elements of a constant that is written out while importing."""

_MOST_KNOWN = 1 << 12
"""Elements that are formulas of sizes, each by itself; a run repeats them to more."""


@converter("Expand", since=8)
def convert_expand(ctx: Context, x: Value, shape: Value) -> Value:
    """Broadcast; a size 1 in the shape keeps the size of the tensor."""
    return expand_to(ctx, x, ctx.need_sizes(shape, "the shape"))


def expand_to(ctx: Context, x: Value, shape: Sequence[Expr]) -> Value:
    """Broadcast to a shape, and the shape to the tensor."""
    ones = max(x.type.rank - len(shape), 0)
    wanted = [ONE] * ones + [ctx.simplify(size) for size in shape]
    extra = len(wanted) - x.type.rank
    for axis, have in enumerate(x.type.shape, extra):
        wanted[axis] = _wide(ctx, have, wanted[axis])
    sizes = tuple(wanted)
    if sizes == x.type.shape:
        return x
    known = _repeated(ctx, np.broadcast_to, x, sizes)
    return ctx.call(Expand(shape=sizes), x) if known is None else known


def _repeated(
    ctx: Context, repeat: Callable[..., Array], x: Value, sizes: Sequence[Expr]
) -> Value | None:
    """Known elements that NumPy's `repeat` repeats, by sizes that are known and not large."""
    fixed = tuple(int(s.value) for s in sizes if isinstance(s, Const))
    if len(fixed) < len(sizes) or math.prod(fixed) > _MOST_KNOWN:
        return None
    return ctx.on_elements(lambda e: repeat(e, fixed), x)


def _wide(ctx: Context, have: Expr, want: Expr) -> Expr:
    """The size that both broadcast to; the tensor's own where a run finds that 1 is wanted."""
    if ONE in (have, want):
        return have if want == ONE else want
    if surely_equal(have, want, ctx.bounds):
        return have
    if loads(want):
        return ctx.data.size(select(equal(want, 1), have, want))
    known = isinstance(have, Const) or surely_differ(want, 1, ctx.bounds)
    if known or free_vars(have) & free_vars(want):  # formulas of one size are equal, or a mistake
        return want
    return ctx.data.checked(select(equal(want, 1), have, want))


@converter("Tile", since=6)
def convert_tile(ctx: Context, x: Value, repeats: Value) -> Value:
    """The whole tensor, repeated along each axis."""
    counts = ctx.need_sizes(repeats, "how often the tensor is repeated")
    if len(counts) != x.type.rank:
        ctx.refuse(f"{len(counts)} repeats for {x.type}")
    for count in counts:
        if surely_less(count, 0):
            ctx.refuse(f"it is to be repeated {count} times")
    if all(c == ONE for c in counts):
        return x
    known = _repeated(ctx, np.tile, x, counts)
    return ctx.call(Tile(repeats=tuple(counts)), x) if known is None else known


@converter("Range", since=11)
def convert_range(
    ctx: Context, start: Value, limit: Value, delta: Value, *, stash_type: int = 1
) -> Value:
    """start, start + delta, ... below limit."""
    bounds = (start, limit, delta)
    if all(ctx.array(v) is not None for v in bounds):
        low, high, by = (ctx.one_number(v, "the range") for v in bounds)
        if by == 0 or not np.isfinite((low, high, by)).all():
            ctx.refuse(f"it goes from {low} to {high} by {by}")
        steps = (high - low) / by
        check_elems(ctx, steps)
        numbers = np.arange(low, high, by) if steps > 0 else np.zeros(0)
        return ctx.constant(round_to(numbers, start.type.dtype))
    if start.type.dtype.is_float or any(ctx.data_only(v) is not None for v in bounds):
        return _range_of_data(ctx, start, limit, delta)
    first, last, step = (ctx.one_size(v, "the range") for v in bounds)
    if step == ZERO:
        ctx.refuse("delta is 0")
    if not isinstance(step, Const) or abs(step.value) > _FAR:  # no sum with it leaves 64 bits
        return _range_of_data(ctx, start, limit, delta)
    span, apart = (last - first, step) if step.value > 0 else (first - last, -step)
    count = canonical((span + apart - 1) // apart)
    if not surely_at_most(0, count):
        count = canonical(maximum(count, ZERO))
    return ctx.call(Range(size=count, start=first, delta=step, dtype=start.type.dtype))


def _range_of_data(ctx: Context, start: Value, limit: Value, delta: Value) -> Value:
    """As many numbers as fit, start + i * delta each.

    Floats: their number is computed in float64.
    """
    dtype = start.type.dtype
    if dtype.is_float:
        low, high, by = (cast_to(ctx, v, DType.F64) for v in (start, limit, delta))
        steps = ctx.call(Ceil(), ctx.call(Div(), ctx.call(Sub(), high, low), by))
        is_count = ctx.call(Less(), ctx.call(Abs(), steps), ctx.scalar(2.0**62, DType.F64))
        label = f"node '{ctx.node.label}' (Range)"
        why = f"{label}: delta is 0, an operand is not finite, or there are too many numbers"
        ctx.data.require(is_count, True, why)
        steps = ctx.call(Maximum(), steps, ctx.scalar(0.0, DType.F64))
        steps = ctx.call(Where(), is_count, steps, ctx.scalar(0.0, DType.F64))  # no NaN
        count = ctx.one_size(cast_to(ctx, steps, DType.I64), "the range")
    else:
        first, last, step = (ctx.one_size(v, "the range") for v in (start, limit, delta))
        # The quotient rounds toward minus infinity; -(-a // b) rounds up.
        fits = maximum(-((first - last) // select(equal(step, 0), ONE, step)), ZERO)
        count = select(equal(step, 0), index(-1), fits)
    numbers = ctx.call(Range(size=ctx.data.checked(ctx.simplify(count))))
    shape = numbers.type.shape
    one = [reshape_to(ctx, v, (ONE,) * len(shape)) for v in (start, delta)]
    scaled = ctx.call(Mul(), cast_to(ctx, numbers, dtype), one[1])
    return ctx.call(Add(), scaled, one[0])


@converter("EyeLike", since=9)
def convert_eye_like(ctx: Context, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    """Ones on a diagonal."""
    if x.type.rank != 2:
        ctx.refuse(f"it needs a matrix, and has {x.type}")
    wanted = x.type.dtype if dtype is None else number_type(ctx, dtype)
    if not x.type.is_static:
        high, wide = x.type.shape
        row = reshape_to(ctx, ctx.call(Range(size=high)), (high, ONE))
        moved = ctx.call(Add(), row, ctx.scalar(k, row.type.dtype))
        return cast_to(ctx, ctx.call(Equal(), moved, ctx.call(Range(size=wide))), wanted)
    rows, columns = x.type.static_shape
    check_elems(ctx, rows * columns)
    return ctx.constant(np.eye(rows, columns, k, dtype=NUMPY_DTYPES[wanted]))


@converter("OneHot", since=9)
def convert_one_hot(
    ctx: Context, indices: Value, depth: Value, values: Value, *, axis: int = -1
) -> Value:
    """`values[1]` where the position along `axis` is the index, else `values[0]`."""
    count = ctx.one_size(depth, "depth")
    (axis,) = axes_of(ctx, (axis,), indices.type.rank + 1)
    at = cast_to(ctx, indices, DType.I64) if indices.type.dtype.is_float else indices
    return ctx.call(OneHot(depth=count, axis=axis), at, values)


_FAR = 1 << 48
"""More columns than a matrix has."""


@converter("Trilu", since=14)
def convert_trilu(ctx: Context, x: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    """The upper or lower triangle of matrices, zeros elsewhere."""
    offset = ZERO if k is None else ctx.one_size(k, "k")
    if isinstance(offset, Const) or loads(offset):  # no sum with it leaves 64 bits
        offset = canonical(minimum(maximum(offset, index(-_FAR)), index(_FAR)))
    return ctx.call(Trilu(upper=bool(upper), k=offset), x)
