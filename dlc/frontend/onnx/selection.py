"""Converters of operators that pick as many elements as the data says.

Flags are counted along the way; the last count is a size that the host program reads.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, Step, scan
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.control import counter
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose
from dlc.frontend.onnx.slicing import slice_axes
from dlc.graph.graph import Value
from dlc.graph.ops.binary import (
    Add,
    Div,
    Equal,
    Greater,
    GreaterEqual,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Or,
    Sub,
)
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.elementwise import Not
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.order import OrderKeys, SortOrder, has_order, key_type
from dlc.graph.ops.reduce import CumSum, Reduce
from dlc.graph.ops.scatter import ScatterElements
from dlc.graph.ops.selection import TruePlaces
from dlc.graph.ops.shape import Concat, Expand
from dlc.graph.ops.suppress import Suppress
from dlc.te.expr import ONE, ZERO, Expr, index, maximum, minimum
from dlc.te.simplify import surely_less


def true_places(ctx: Context, flags: Value) -> Value:
    """The places of the true elements of a vector of bools, in order: i64[their number]."""
    total = ctx.call(Reduce(kind="sum", axes=(0,), keepdims=False), cast_to(ctx, flags, DType.I64))
    count = ctx.one_size(total, "how many elements are not zero")
    return ctx.call(TruePlaces(count=minimum(count, flags.type.elems)), flags)


@converter("NonZero", since=9)
def convert_non_zero(ctx: Context, x: Value) -> Value:
    """The indices of elements that are not zero, a row for each axis."""
    if x.type.rank == 0:
        x = reshape_to(ctx, x, (ONE,))
    flat = reshape_to(ctx, cast_to(ctx, x, DType.BOOL), (x.type.elems,))
    return _unravel(ctx, true_places(ctx, flat), x)


def _unravel(ctx: Context, places: Value, x: Value) -> Value:
    """Places in row-major order as indices, a row for each axis of `x`."""
    rows: list[Value] = []
    rest = places
    for axis in reversed(range(x.type.rank)):
        size = ctx.size_tensor(np.array(x.type.shape[axis], np.object_))
        row = rest if axis == 0 else ctx.call(Mod(), rest, size)
        rows.insert(0, reshape_to(ctx, row, (ONE, places.type.shape[0])))
        if axis:
            rest = ctx.call(Div(), rest, size)
    return rows[0] if len(rows) == 1 else ctx.call(Concat(axis=0), *rows)


@converter("Compress", since=9)
def convert_compress(ctx: Context, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    """The slices along an axis, or the elements, whose flag is set."""
    if axis is None:
        x, along = reshape_to(ctx, x, (x.type.elems,)), 0
    else:
        (along,) = axes_of(ctx, (axis,), x.type.rank)
    size = x.type.shape[along]
    if condition.type.rank != 1 or surely_less(size, condition.type.shape[0]):
        ctx.refuse(f"its condition is {condition.type} for {size} slices")
    reason = f"node '{ctx.node.label}': its condition is longer than the axis"
    ctx.data.refuse_negative(size - condition.type.shape[0], reason)
    return ctx.call(Gather(axis=along), x, true_places(ctx, condition))


@converter("Unique", since=11)
def convert_unique(
    ctx: Context, x: Value, *, axis: int | None = None, sorted: int = 1
) -> tuple[Value, ...]:
    """Distinct elements or slices, where each was first, which each is, and how many equal it."""
    if axis is None:
        x, along = reshape_to(ctx, x, (x.type.elems,)), 0
    else:
        (along,) = axes_of(ctx, (axis,), x.type.rank)
    axes = [along, *(d for d in range(x.type.rank) if d != along)]
    moved = transpose(ctx, x, axes)
    rows = moved.type.shape[0]
    matrix = reshape_to(ctx, moved, (rows, _product(moved.type.shape[1:])))
    keys = order_keys(ctx, matrix)
    order = _row_order(ctx, keys)
    starts = _starts(ctx, keys, order)
    heads = true_places(ctx, starts)
    count = heads.type.shape[0]
    sums = ctx.call(CumSum(axis=0), cast_to(ctx, starts, DType.I64))
    groups = ctx.call(Sub(), sums, _one(ctx))
    places = ctx.call(Gather(axis=0), order, heads)  # sorting keeps the first of equal rows first
    ranks = _scatter(ctx, rows, order, groups)
    counts = _scatter(ctx, count, groups, ctx.call(Expand(shape=(rows,)), _one(ctx)))
    if not sorted:
        by_place = ctx.call(SortOrder(k=count), _as_row(ctx, order_keys(ctx, places)))
        by_place = reshape_to(ctx, by_place, (count,))
        renamed = _scatter(ctx, count, by_place, counter(ctx, count))
        ranks = ctx.call(Gather(axis=0), renamed, ranks)
        places, counts = (ctx.call(Gather(axis=0), v, by_place) for v in (places, counts))
    return ctx.call(Gather(axis=along), x, places), places, ranks, counts


def order_keys(ctx: Context, x: Value, *, largest: bool = False) -> Value:
    """Unsigned integers that compare as the elements do."""
    if x.type.dtype is DType.BOOL:
        x = cast_to(ctx, x, DType.U8)
    of = x.type.dtype
    if not has_order(of):
        ctx.refuse(f"elements of type {of} have no order")
    bits = x if of is key_type(of) else ctx.call(BitCast(of=of, to=key_type(of)), x)
    return ctx.call(OrderKeys(of=of, largest=largest), bits)


def _row_order(ctx: Context, keys: Value) -> Value:
    """The rows of a matrix in lexicographic order: sorted by the last column first."""
    rows, columns = keys.type.shape

    def sort(ctx: Context, column: Value) -> Value:
        return reshape_to(ctx, ctx.call(SortOrder(k=rows), _as_row(ctx, column)), (rows,))

    if columns == ONE:
        return sort(ctx, reshape_to(ctx, keys, (rows,)))

    def step(body: Body, state: list[Value], row: list[Value]) -> Step:
        order = sort(body, body.call(Gather(axis=0), row[0], state[0]))
        return Step([body.call(Gather(axis=0), state[0], order)], [])

    by_column = transpose(ctx, keys, (1, 0))
    (order,) = scan(ctx, "columns", [counter(ctx, rows)], [by_column], step, reverse=True)
    return order


def _starts(ctx: Context, keys: Value, order: Value) -> Value:
    """Which rows, in order, differ from the one before them."""
    number = counter(ctx, keys.type.shape[0])
    before = ctx.call(Maximum(), ctx.call(Sub(), number, _one(ctx)), _zero(ctx))
    both = (order, ctx.call(Gather(axis=0), order, before))
    equal = ctx.call(Equal(), *(ctx.call(Gather(axis=0), keys, at) for at in both))
    unequal = cast_to(ctx, ctx.call(Not(), equal), DType.I32)
    differ = ctx.call(Reduce(kind="max", axes=(1,), keepdims=False), unequal)
    none = ctx.constant(np.zeros((), np.int32))
    return ctx.call(Or(), ctx.call(Greater(), differ, none), ctx.call(Equal(), number, _zero(ctx)))


def _scatter(ctx: Context, size: Expr, at: Value, updates: Value) -> Value:
    """Sums of updates by their places."""
    zeros = ctx.call(Expand(shape=(size,)), _zero(ctx))
    return ctx.call(ScatterElements(axis=0, reduction="add"), zeros, at, updates)


def _as_row(ctx: Context, x: Value) -> Value:
    return reshape_to(ctx, x, (ONE, x.type.shape[0]))


def _zero(ctx: Context) -> Value:
    return ctx.constant(np.zeros((), np.int64))


def _one(ctx: Context) -> Value:
    return ctx.constant(np.ones((), np.int64))


def _product(sizes: tuple[Expr, ...]) -> Expr:
    total: Expr = ONE
    for size in sizes:
        total = total * size
    return total


@converter("NonMaxSuppression", since=10)
def convert_nms(
    ctx: Context,
    boxes: Value,
    scores: Value,
    most: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """Boxes picked greedily by score for each batch and class; a row is (batch, class, box)."""
    if boxes.type.rank != 3 or scores.type.rank != 3:
        ctx.refuse(f"boxes are {boxes.type} and scores are {scores.type}, not of rank 3")
    _, classes, count = scores.type.shape
    limit = ZERO if most is None else ctx.one_size(most, "max_output_boxes_per_class")
    steps = ctx.data.size(minimum(maximum(limit, ZERO), count))
    zero = ctx.scalar(0.0, DType.F32)
    iou = reshape_to(ctx, iou_threshold, ()) if iou_threshold is not None else zero
    edges = _edges(ctx, boxes, center_point_box)
    alive = ctx.call(Expand(shape=scores.type.shape), ctx.constant(np.ones((), np.bool_)))
    if score_threshold is not None:
        alive = ctx.call(Greater(), scores, reshape_to(ctx, score_threshold, ()))
    keys = order_keys(ctx, scores, largest=True)
    chosen = ctx.call(Suppress(steps=steps), keys, alive, *edges, _area(ctx, edges), iou)
    flat = reshape_to(ctx, chosen, (chosen.type.elems,))
    found = true_places(ctx, ctx.call(GreaterEqual(), flat, ctx.constant(np.zeros((), np.int64))))
    where = [found]
    for size in (steps, classes):
        divisor = ctx.call(
            Maximum(),
            ctx.size_tensor(np.array(size, np.object_)),
            ctx.constant(np.ones((), np.int64)),
        )
        where.append(ctx.call(Div(), where[-1], divisor))
    width = ctx.call(
        Maximum(),
        ctx.size_tensor(np.array(classes, np.object_)),
        ctx.constant(np.ones((), np.int64)),
    )
    columns = (where[2], ctx.call(Mod(), where[1], width), ctx.call(Gather(axis=0), flat, found))
    shape = (found.type.shape[0], ONE)
    return ctx.call(Concat(axis=1), *(reshape_to(ctx, c, shape) for c in columns))


def _edges(ctx: Context, boxes: Value, center_point_box: int) -> list[Value]:
    """Low and high y and x of all boxes, each [batch, 1, count]."""
    batch, count, _ = boxes.type.shape

    def part(at: int) -> Value:
        column = slice_axes(ctx, boxes, [index(at)], [index(at + 1)], [2], [1])
        return reshape_to(ctx, column, (batch, ONE, count))

    a, b, c, d = (part(at) for at in range(4))
    if center_point_box:
        half = ctx.scalar(0.5, DType.F32)
        width, height = ctx.call(Mul(), c, half), ctx.call(Mul(), d, half)
        x, y = a, b
        sides = ((y, height), (x, width))
        return [ctx.call(op, v, h) for v, h in sides for op in (Sub(), Add())]
    pairs = ((a, c), (b, d))
    return [ctx.call(op, *pair) for pair in pairs for op in (Minimum(), Maximum())]


def _area(ctx: Context, edges: list[Value]) -> Value:
    top, bottom, left, right = edges
    return ctx.call(Mul(), ctx.call(Sub(), bottom, top), ctx.call(Sub(), right, left))
