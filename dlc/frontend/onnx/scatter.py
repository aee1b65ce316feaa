"""Converters of operators that indices from the data lead: scatters, gathers, sequences in reverse.

ScatterND of indices that name a box is what exporters make of x[a:b] = y.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.cache import TensorScatter
from dlc.graph.ops.gather import GatherElements, GatherND, ReverseSequence
from dlc.graph.ops.scatter import ScatterElements, ScatterND
from dlc.te.expr import ZERO, Const, Expr, index
from dlc.te.types import const_size


@converter("ScatterND", since=11)
def convert_scatter_nd(
    ctx: Context, x: Value, indices: Value, updates: Value, *, reduction: str = "none"
) -> Value:
    """Slices updated at positions; a box of them is joined to what lies around it.

    Source: https://onnx.ai/onnx/operators/onnx__ScatterND.html
    """
    at = ctx.array(indices)
    if at is not None and reduction == "none" and x.type.is_static and updates.type.is_static:
        box = _box(at, x.type.static_shape)
        if box is not None:
            return _replaced(ctx, x, updates, *box)
    inside = _checked_positions(ctx, x, indices, 0)
    return ctx.call(ScatterND(reduction=reduction), x, inside, updates)


@converter("GatherND", since=11)
def convert_gather_nd(ctx: Context, x: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """Slices at positions."""
    inside = _checked_positions(ctx, x, indices, batch_dims)
    return ctx.call(GatherND(batch_dims=batch_dims), x, inside)


def _checked_positions(ctx: Context, x: Value, indices: Value, batch: int) -> Value:
    """Positions that are elements of the last axis."""
    length = indices.type.shape[-1] if indices.type.rank else ZERO
    if not isinstance(length, Const) or not 0 < length.value <= x.type.rank - batch:
        return indices  # the operator says what is wrong
    return checked(ctx, indices, x.type.shape[batch : batch + int(length.value)])


@converter("GatherElements", since=11)
def convert_gather_elements(ctx: Context, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """Elements at indices along an axis."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    inside = checked(ctx, indices, (x.type.shape[axis],))
    return ctx.call(GatherElements(axis=axis), x, inside)


@converter("ScatterElements", since=11)
def convert_scatter_elements(
    ctx: Context,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Value:
    """Elements updated at indices along an axis."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    inside = checked(ctx, indices, (x.type.shape[axis],))
    return ctx.call(ScatterElements(axis=axis, reduction=reduction), x, inside, updates)


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First index and number of elements along each axis."""


def _box(at: Array, shape: Sequence[int]) -> Box | None:
    """The box that the indices walk through in row-major order, if they do."""
    if at.ndim < 1 or not at.size or at.shape[-1] > len(shape):
        return None
    count = at.shape[-1]
    rows = at.reshape(-1, count).astype(np.int64)
    rows = np.where(rows < 0, rows + np.array(shape[:count]), rows)
    first, last = rows.min(axis=0), rows.max(axis=0)
    sizes = last - first + 1
    if (first < 0).any() or (last >= shape[:count]).any() or sizes.prod() != len(rows):
        return None
    expected = np.stack(np.unravel_index(np.arange(len(rows)), sizes), axis=1) + first
    if not np.array_equal(rows, expected):
        return None
    rest = tuple(shape[count:])
    return (*first.tolist(), *[0] * len(rest)), (*sizes.tolist(), *rest)


def _replaced(
    ctx: Context, x: Value, updates: Value, first: Sequence[int], sizes: Sequence[int]
) -> Value:
    """`x` with a box replaced: from the innermost axis that is not whole to the outermost."""
    box = reshape_to(ctx, updates, tuple(map(index, sizes)))
    frame = [(start, start + n) for start, n in zip(first, sizes, strict=True)]
    for axis in reversed(range(len(frame))):
        size = const_size(x.type.shape[axis])
        low, high = frame[axis]
        if (low, high) == (0, size):
            continue
        outer = _cut(ctx, x, frame[:axis])
        parts = [_along(ctx, outer, axis, 0, low), box, _along(ctx, outer, axis, high, size)]
        box = concat(ctx, [p for p in parts if p is not None], axis)
        frame[axis] = (0, size)
    return box


def _cut(ctx: Context, x: Value, frame: Sequence[tuple[int, int]]) -> Value:
    """The part of `x` inside a frame along its first axes."""
    starts: list[Expr] = [index(low) for low, _ in frame]
    ends: list[Expr] = [index(high) for _, high in frame]
    return slice_axes(ctx, x, starts, ends, range(len(frame)), [1] * len(frame))


def _along(ctx: Context, x: Value, axis: int, low: int, high: int) -> Value | None:
    if low == high:
        return None
    return slice_axes(ctx, x, [index(low)], [index(high)], [axis], [1])


@converter("TensorScatter", since=24)
def convert_tensor_scatter(
    ctx: Context,
    past: Value,
    update: Value,
    indices: Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Value:
    """A cache with an update from an index on; only a circular one begins again at its end."""
    op = TensorScatter(axis=axis, mode=mode)
    if indices is None or past.type.rank != update.type.rank:
        return ctx.call(op, past, update, *([] if indices is None else [indices]))
    (axis,) = axes_of(ctx, (axis,), past.type.rank)
    size = past.type.shape[axis]
    places = size if mode == "circular" else size - update.type.shape[axis] + 1
    return ctx.call(op, past, update, checked(ctx, indices, (places,), negative=False))


@converter("ReverseSequence", since=10)
def convert_reverse_sequence(
    ctx: Context, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> Value:
    """The first elements along an axis in reverse, as many as each sequence is long."""
    if {batch_axis, time_axis} == {0, 1} and x.type.rank > 1:
        lengths = checked(ctx, lengths, (x.type.shape[time_axis] + 1,), negative=False)
    return ctx.call(ReverseSequence(batch_axis=batch_axis, time_axis=time_axis), x, lengths)
