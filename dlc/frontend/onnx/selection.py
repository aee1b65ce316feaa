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
    And,
    Div,
    Equal,
    Greater,
    GreaterEqual,
    Less,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Sub,
    Where,
)
from dlc.graph.ops.elementwise import Not
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import ArgMax, Reduce
from dlc.graph.ops.selection import FindCounts, RunningCount, UniqueRanks
from dlc.graph.ops.shape import Concat, Expand
from dlc.te.expr import ONE, ZERO, Expr, index, maximum, minimum
from dlc.te.simplify import surely_less


def true_places(ctx: Context, flags: Value) -> Value:
    """The places of the true elements of a vector of bools, in order: i64[their number]."""
    total = ctx.call(Reduce(kind="sum", axes=(0,), keepdims=False), cast_to(ctx, flags, DType.I64))
    count = ctx.one_size(total, "how many elements are not zero")
    counts = ctx.call(RunningCount(), flags)
    return ctx.call(FindCounts(count=minimum(count, flags.type.elems)), counts)


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
    order = [along, *(d for d in range(x.type.rank) if d != along)]
    moved = transpose(ctx, x, order)
    rows = moved.type.shape[0]
    matrix = reshape_to(ctx, moved, (rows, _product(moved.type.shape[1:])))
    first, ranks = ctx.call_all(UniqueRanks(sorted=bool(sorted)), matrix, count=2)
    is_first = ctx.call(Equal(), first, counter(ctx, rows))
    firsts = true_places(ctx, is_first)  # in order of appearance
    count = firsts.type.shape[0]
    numbers = reshape_to(ctx, counter(ctx, count), (count, ONE))
    own = reshape_to(ctx, ctx.call(Gather(axis=0), ranks, firsts), (ONE, count))
    found = ctx.call(ArgMax(axis=1, keepdims=False), _ones(ctx, ctx.call(Equal(), numbers, own)))
    places = ctx.call(Gather(axis=0), firsts, found)
    mine = ctx.call(Equal(), numbers, reshape_to(ctx, ranks, (ONE, rows)))
    counts = ctx.call(Reduce(kind="sum", axes=(1,), keepdims=False), cast_to(ctx, mine, DType.I64))
    return ctx.call(Gather(axis=along), x, places), places, ranks, counts


def _ones(ctx: Context, flags: Value) -> Value:
    return cast_to(ctx, flags, DType.I32)


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
    """Boxes picked greedily by score for each batch and class; a row is (batch, class, box).

    One step picks one box of every batch and class at once.
    """
    if boxes.type.rank != 3 or scores.type.rank != 3:
        ctx.refuse(f"boxes are {boxes.type} and scores are {scores.type}, not of rank 3")
    _, classes, count = scores.type.shape
    limit = ZERO if most is None else ctx.one_size(most, "max_output_boxes_per_class")
    steps = ctx.data.size(minimum(maximum(limit, ZERO), count))
    zero = ctx.scalar(0.0, DType.F32)
    iou = reshape_to(ctx, iou_threshold, ()) if iou_threshold is not None else zero
    edges = _edges(ctx, boxes, center_point_box)
    area = _area(ctx, edges)
    alive = ctx.call(Expand(shape=scores.type.shape), ctx.constant(np.ones((), np.bool_)))
    if score_threshold is not None:
        alive = ctx.call(Greater(), scores, reshape_to(ctx, score_threshold, ()))

    def step(body: Body, state: list[Value], _: list[Value]) -> Step:
        open_ = state[0]
        lowest = body.scalar(-np.inf, DType.F32)
        best = body.call(ArgMax(axis=2, keepdims=True), body.call(Where(), open_, scores, lowest))
        numbers = reshape_to(body, counter(body, count), (ONE, ONE, count))
        picked = body.call(Equal(), numbers, best)
        any_left = body.call(Reduce(kind="max", axes=(2,), keepdims=True), _ones(body, open_))
        none = body.constant(np.array(-1, np.int64))
        number = body.call(Where(), cast_to(body, any_left, DType.BOOL), best, none)
        overlap = _overlap(body, edges, area, picked)
        kept = body.call(Not(), body.call(Greater(), overlap, iou))
        kept = body.call(And(), kept, body.call(Not(), picked))
        return Step([body.call(And(), open_, kept)], [number])

    _, chosen = scan(ctx, "suppression", [alive], [counter(ctx, steps)], step)
    by_class = transpose(ctx, chosen, (1, 2, 0, 3))  # [batch, classes, steps, 1]
    flat = reshape_to(ctx, by_class, (by_class.type.elems,))
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


def _overlap(ctx: Context, edges: list[Value], area: Value, picked: Value) -> Value:
    """Intersection over union of every box with the one picked in its batch and class."""
    zero = ctx.scalar(0.0, DType.F32)

    def of_picked(value: Value) -> Value:
        shown = ctx.call(Where(), picked, value, zero)
        return ctx.call(Reduce(kind="sum", axes=(2,), keepdims=True), shown)

    top, bottom, left, right = edges
    low_y, low_x = (ctx.call(Maximum(), v, of_picked(v)) for v in (top, left))
    high_y, high_x = (ctx.call(Minimum(), v, of_picked(v)) for v in (bottom, right))
    height = ctx.call(Maximum(), ctx.call(Sub(), high_y, low_y), zero)
    width = ctx.call(Maximum(), ctx.call(Sub(), high_x, low_x), zero)
    both = ctx.call(Mul(), height, width)
    union = ctx.call(Sub(), ctx.call(Add(), area, of_picked(area)), both)
    positive = ctx.call(Less(), zero, union)
    return ctx.call(Where(), positive, ctx.call(Div(), both, union), zero)
