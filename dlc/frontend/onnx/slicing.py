"""Converters of operators that pick and join parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.data_axes import of_axis
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.graph.graph import Value
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.shape import Concat, Slice
from dlc.te.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    both,
    ceil_div,
    equal,
    index,
    maximum,
    minimum,
    select,
)
from dlc.te.simplify import canonical, surely_at_most, surely_differ, surely_divides, surely_less

_FAR = 10**9
"""Exporters write "to the end" as INT64_MAX, INT32_MAX or 1000000000; no axis is that long."""


@converter("Slice", since=1)
def convert_slice_attributes(
    ctx: Context,
    x: Value,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] = (),
) -> Value:
    """Until opset 10 the bounds were attributes."""
    return slice_axes(
        ctx, x, list(map(index, starts)), list(map(index, ends)),
        axes or range(len(starts)), [1] * len(starts),
    )  # fmt: skip


@converter("Slice", since=10)
def convert_slice(
    ctx: Context,
    x: Value,
    starts: Value,
    ends: Value,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    """A box of a tensor, with steps."""
    first = ctx.need_sizes(starts, "where the slice starts")
    last = ctx.need_sizes(ends, "where the slice ends")
    strange = [v for v in (axes, steps) if v is not None and ctx.data_only(v) is not None]
    if strange:
        named = (
            list(map(index, range(len(first)))) if axes is None else ctx.need_sizes(axes, "axes")
        )
        apart = [ONE] * len(first) if steps is None else ctx.need_sizes(steps, "steps")
        return _slice_of_data(ctx, x, first, last, named, apart)
    where = range(len(first)) if axes is None else ctx.ints(axes, "axes")
    step = [1] * len(first) if steps is None else ctx.ints(steps, "steps")
    return slice_axes(ctx, x, first, last, where, step)


def _slice_of_data(
    ctx: Context,
    x: Value,
    starts: Sequence[Expr],
    ends: Sequence[Expr],
    axes: Sequence[Expr],
    steps: Sequence[Expr],
) -> Value:
    """A box of which a run tells the axes or the steps: one gather along each axis."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        ctx.refuse("starts, ends, axes and steps differ in length")
    rank = x.type.rank
    per_axis = [
        of_axis(axes, rank, values, [default] * rank)
        for values, default in ((starts, ZERO), (ends, index(_FAR)), (steps, ONE))
    ]
    for axis, (start, end, step) in enumerate(zip(*per_axis, strict=True)):
        if (start, end, step) == (ZERO, index(_FAR), ONE):
            continue
        size = x.type.shape[axis]
        down = step < 0
        lowest = select(down, index(-1), ZERO)
        highest = select(down, size - 1, size)
        begin = _within(_from_back(start, size), ZERO, highest)
        stop = _within(_from_back(end, size), lowest, highest)
        apart = select(equal(step, 0), ONE, step)
        # Rounded up, whatever the sign: -(-a // b).
        count = maximum(-((begin - stop) // apart), ZERO)
        valid = select(equal(step, 0), index(-1), minimum(count, size))
        numbers = ctx.call(Range(size=ctx.data.size(valid), start=begin, delta=apart))
        x = ctx.call(Gather(axis=axis), x, numbers)
    return x


def _from_back(bound: Expr, size: Expr) -> Expr:
    return select(bound < 0, bound + size, bound)


def _within(bound: Expr, lowest: Expr, highest: Expr) -> Expr:
    return maximum(minimum(bound, highest), lowest)


def slice_axes(
    ctx: Context,
    x: Value,
    starts: Sequence[Expr],
    ends: Sequence[Expr],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    """A box of a tensor; bounds as Python understands them."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        ctx.refuse("starts, ends, axes and steps differ in length")
    first: list[Expr] = [ZERO] * x.type.rank
    sizes = list(x.type.shape)
    step = [1] * x.type.rank
    found = axes_of(ctx, axes, x.type.rank)
    for axis, start, end, stride in zip(found, starts, ends, steps, strict=True):
        if stride == 0:
            ctx.refuse("a step of 0")
        first[axis], sizes[axis] = _bounds(ctx, x.type.shape[axis], start, end, stride)
        step[axis] = stride
    if tuple(map(canonical, sizes)) == x.type.shape and min(step, default=1) > 0:
        return x
    known = _slice_elements(ctx, x, first, sizes, step)
    if known is not None:
        return known
    return ctx.call(Slice(starts=tuple(first), sizes=tuple(sizes), steps=tuple(step)), x)


def _slice_elements(
    ctx: Context, x: Value, first: Sequence[Expr], sizes: Sequence[Expr], steps: Sequence[int]
) -> Value | None:
    fixed = all(isinstance(e, Const) for e in (*first, *sizes))
    if not fixed or not ctx.is_symbolic(x):
        return None
    picks = [
        np.arange(int(n.value)) * step + int(start.value)
        for start, n, step in zip(first, sizes, steps, strict=True)
        if isinstance(n, Const) and isinstance(start, Const)
    ]
    return ctx.on_elements(lambda e: e[np.ix_(*picks)], x)


def _bounds(ctx: Context, size: Expr, start: Expr, end: Expr, step: int) -> tuple[Expr, Expr]:
    """The first index and the number of elements along one axis."""
    lowest, highest = (ZERO, size) if step > 0 else (index(-1), size - 1)
    begin = _clamped(ctx, size, start, ZERO, highest)
    stop = _clamped(ctx, size, end, lowest, highest)
    distance = stop - begin if step > 0 else begin - stop
    count = (distance + (abs(step) - 1)) // abs(step)
    if step < 0:  # of no elements, the last is not there to start from
        count = minimum(ctx.simplify(count), size)
    return ctx.simplify(begin), ctx.simplify(maximum(ctx.simplify(count), ZERO))


def _clamped(ctx: Context, size: Expr, bound: Expr, lowest: Expr, highest: Expr) -> Expr:
    """An index as Python understands it: from the back where negative, never out of range."""
    if isinstance(bound, Const) and abs(int(bound.value)) >= _FAR:
        return highest if bound.value > 0 else lowest
    if surely_less(bound, 0, ctx.bounds):
        bound = bound + size
        below = True
    elif surely_at_most(0, bound, ctx.bounds):
        below = False
    else:
        bound = _from_back(bound, size)
        below = True
    result = ctx.simplify(minimum(ctx.simplify(bound), ctx.simplify(highest)))
    return ctx.simplify(maximum(result, lowest)) if below else result


@converter("Split", since=1)
def convert_split_attribute(
    ctx: Context, x: Value, *, axis: int = 0, split: Sequence[int] = ()
) -> tuple[Value, ...]:
    """Until opset 13 the sizes of the parts were an attribute."""
    return split_axis(ctx, x, axis, list(map(index, split)) or None, ctx.output_count)


@converter("Split", since=13)
def convert_split(
    ctx: Context,
    x: Value,
    split: Value | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Value, ...]:
    """Parts along one axis, equal ones (the last may be smaller) unless their sizes are given."""
    sizes: Sequence[Expr] | None = None
    if split is not None:
        sizes = ctx.need_sizes(split, "how the tensor is split")
    if split is not None and ctx.data_only(split) is not None:
        sizes = parts_of_data(ctx, x, sizes or (), axis)
    if num_outputs not in (None, ctx.output_count):
        ctx.refuse(f"num_outputs = {num_outputs} for {ctx.output_count} results")
    return split_axis(ctx, x, axis, sizes, ctx.output_count)


def parts_of_data(ctx: Context, x: Value, sizes: Sequence[Expr], axis: int) -> Sequence[Expr]:
    """Parts whose sizes a run tells; it refuses those that do not make up the whole."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    total = sum(sizes, start=ZERO)
    fits = equal(total, x.type.shape[axis])
    for size in sizes:
        fits = both(fits, size >= ZERO)
    return [ctx.data.size(select(fits, size, index(-1))) for size in sizes]


def split_axis(
    ctx: Context, x: Value, axis: int, sizes: Sequence[Expr] | None, count: int
) -> tuple[Value, ...]:
    """Parts along one axis."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    whole = x.type.shape[axis]
    if sizes is None and not isinstance(whole, Const) and ctx.opset < 18:
        return _halves(ctx, x, axis, count)
    if sizes is None:
        sizes = _equal_parts(ctx, whole, count)
    total = sum(sizes, start=ZERO)
    negative = any(surely_less(size, 0) for size in sizes)
    if negative or surely_differ(total, whole):
        ctx.refuse(f"parts of {', '.join(map(str, sizes))} do not make up {whole}")
    parts: list[Value] = []
    first: Expr = ZERO
    for size in sizes:
        end = canonical(first + size)
        parts.append(slice_axes(ctx, x, [first], [end], [axis], [1]))
        first = end
    return tuple(parts)


def _equal_parts(ctx: Context, whole: Expr, count: int) -> list[Expr]:
    """Parts of one size, from opset 18 on but for the last; one too large for that is negative."""
    if surely_divides(count, whole):
        return [canonical(whole // count)] * count
    if ctx.opset < 18:
        ctx.refuse(f"{whole} does not split into {count} equal parts")
    chunk = canonical(ceil_div(whole, count))
    return [*[chunk] * (count - 1), canonical(whole - chunk * (count - 1))]


def _halves(ctx: Context, x: Value, axis: int, count: int) -> tuple[Value, ...]:
    """Equal parts of an axis whose size a run tells, which refuses what does not split."""
    before, whole, after = x.type.shape[:axis], x.type.shape[axis], x.type.shape[axis + 1 :]
    size = canonical(whole // count)
    parted = reshape_to(ctx, x, (*before, index(count), size, *after))
    parts = (slice_axes(ctx, parted, [index(i)], [index(i + 1)], [axis], [1]) for i in range(count))
    return tuple(reshape_to(ctx, part, (*before, size, *after)) for part in parts)


@converter("Concat", since=4)
def convert_concat(ctx: Context, *parts: Value, axis: int) -> Value:
    """Tensors joined along one axis."""
    return concat(ctx, parts, axis)


def concat(ctx: Context, parts: Sequence[Value], axis: int) -> Value:
    """Tensors joined along one axis."""
    if not parts:
        ctx.refuse("it joins nothing")
    (axis,) = axes_of(ctx, (axis,), parts[0].type.rank)
    if len(parts) == 1:
        return parts[0]
    others = {(*p.type.shape[:axis], *p.type.shape[axis + 1 :]) for p in parts}
    known = None
    if len(others) == 1:  # shapes that do not fit are the operator's to refuse
        known = ctx.on_elements(lambda *e: np.concatenate(e, axis), *parts)
    if known is not None:
        return known
    joined = ctx.call(Concat(axis=axis), *parts)
    ctx.data.join(joined, parts)
    return joined


@converter("Concat", since=1)
def convert_concat_legacy(ctx: Context, *parts: Value, axis: int = 1) -> Value:
    """Until opset 4 the axis had a default."""
    return concat(ctx, parts, axis)


@converter("Gather", since=1)
def convert_gather(ctx: Context, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """Slices of `x` at these indices along an axis; a scalar index removes the axis."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    at = ctx.array(indices)
    if at is None or at.dtype.kind not in "iu":
        inside = checked(ctx, indices, (x.type.shape[axis],))
        return ctx.call(Gather(axis=axis), x, inside)
    size = x.type.shape[axis]
    if at.size and (surely_at_most(size, int(at.max())) or surely_less(size + int(at.min()), 0)):
        ctx.refuse(f"an index lies outside of axis {axis} of {x.type}")
    known = ctx.on_elements(lambda e: np.asarray(np.take(e, at, axis), np.object_), x)
    if known is not None:
        return known
    if at.size == 1:  # one slice is a view; a gather is a kernel
        number = int(at.reshape(()))
        before, after = x.type.shape[:axis], x.type.shape[axis + 1 :]
        start = index(number) if number >= 0 else canonical(size + number)
        starts = (*(ZERO for _ in before), start, *(ZERO for _ in after))
        one = ctx.call(Slice(starts=starts, sizes=(*before, ONE, *after)), x)
        return reshape_to(ctx, one, (*before, *[ONE] * at.ndim, *after))
    return ctx.call(Gather(axis=axis), x, indices)
