"""Converters of sequences and optionals.

Where only a run knows a position, or how many elements there are, elements of one type are rows of
a tensor, and what is done to a sequence is done to the numbers of its rows. Elements that differ in
size lie one behind the other then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.body import Body, OpenRows, Step, scan
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.control import loop_over
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.loops import StepGraph
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.ragged import (
    ElementType,
    Ragged,
    element_at,
    joined,
    split_into,
    with_element,
    without_element,
)
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, squeeze, transpose, unsqueeze
from dlc.frontend.onnx.sequence_parts import (
    Items,
    Nothing,
    Part,
    Rows,
    element_type,
    elements,
    length,
    nothing,
    parts_of,
    ragged,
    sequence,
    stacked,
    stacked_as,
)
from dlc.frontend.onnx.slicing import concat, convert_gather, parts_of_data, split_axis
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Equal, Less, Minimum, Sub, Where
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.shape import Expand
from dlc.te.expr import Const, Expr, both, ceil_div, index
from dlc.te.simplify import surely_differ, surely_divides
from dlc.te.types import const_size

READERS = frozenset(
    {
        "ConcatFromSequence",
        "If",
        "Identity",
        "Loop",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
    }
)
"""The operators that take sequences; all others get tensors only."""


@converter("SequenceConstruct", since=11)
def convert_construct(ctx: Context, *items: Value) -> Value:
    """A sequence of values."""
    return sequence(ctx, items)


@converter("SequenceEmpty", since=11)
def convert_empty(ctx: Context, *, dtype: int = 1) -> Value:
    """A sequence of nothing; what it is to hold is seen from what is inserted."""
    return sequence(ctx, ())


@converter("SequenceLength", since=11)
def convert_length(ctx: Context, values: Value) -> Value:
    """The number of elements."""
    return ctx.size_tensor(np.array(length(ctx, parts_of(ctx, values)), np.object_))


@converter("SequenceAt", since=11)
def convert_at(ctx: Context, values: Value, position: Value) -> Value:
    """One element."""
    parts = parts_of(ctx, values)
    at = _place(ctx, position, parts, 0)
    if at is not None and isinstance(found := parts[at], Value):
        return found
    element = _element_type(ctx, parts)
    if element.fixed is None:
        apart = ragged(ctx, parts, element)
        return element_at(ctx, apart, _from_front(ctx, position, apart.count, 0))
    rows = stacked_as(ctx, parts, element)
    here = reshape_to(ctx, position, ())
    if ctx.is_symbolic(position):
        here = _from_front(ctx, position, rows.type.shape[0], 0)
    return convert_gather(ctx, rows, here, axis=0)


@converter("SequenceInsert", since=11)
def convert_insert(
    ctx: Context, values: Value, item: Value, position: Value | None = None
) -> Value:
    """A sequence with one element more, by default at its end."""
    parts = parts_of(ctx, values)
    at = len(parts) if position is None else _place(ctx, position, parts, 1)
    if at is not None:
        return sequence(ctx, (*parts[:at], item, *parts[at:]))
    assert position is not None, "it has no place"
    element = _element_type(ctx, (*parts, item))
    if element.fixed is None:
        apart, new = ragged(ctx, parts, element), ragged(ctx, (item,), element)
        here = _from_front(ctx, position, apart.count, 1)
        return sequence(ctx, (with_element(ctx, apart, new, here),))
    rows = stacked_as(ctx, (*parts, item), element)
    count = rows.type.shape[0]
    here = _from_front(ctx, position, count - 1, 1)
    numbers = ctx.call(Range(size=count))
    before = ctx.call(Less(), numbers, here)
    moved = ctx.call(Add(), numbers, ctx.scalar(-1, DType.I64))
    behind = ctx.call(
        Where(),
        ctx.call(Equal(), numbers, here),
        ctx.size_tensor(np.array(count - 1, np.object_)),
        moved,
    )
    order = ctx.call(Where(), before, numbers, behind)
    return sequence(ctx, (Rows(ctx.call(Gather(axis=0), rows, order)),))


@converter("SequenceErase", since=11)
def convert_erase(ctx: Context, values: Value, position: Value | None = None) -> Value:
    """A sequence with one element less, by default the last."""
    parts = parts_of(ctx, values)
    if position is None:
        position = ctx.constant(np.array(-1, np.int64))
    at = _place(ctx, position, parts, 0)
    if at is not None:
        return sequence(ctx, (*parts[:at], *parts[at + 1 :]))
    element = _element_type(ctx, parts)
    if element.fixed is None:
        apart = ragged(ctx, parts, element)
        here = _from_front(ctx, position, apart.count, 0)
        return sequence(ctx, (without_element(ctx, apart, here),))
    rows = stacked_as(ctx, parts, element)
    count = rows.type.shape[0]
    here = _from_front(ctx, position, count, 0)
    numbers = ctx.call(Range(size=ctx.data.checked(ctx.simplify(count - 1))))
    moved = ctx.call(Add(), numbers, ctx.scalar(1, DType.I64))
    order = ctx.call(Where(), ctx.call(Less(), numbers, here), numbers, moved)
    return sequence(ctx, (Rows(ctx.call(Gather(axis=0), rows, order)),))


@converter("ConcatFromSequence", since=11)
def convert_concat(ctx: Context, values: Value, *, axis: int, new_axis: int = 0) -> Value:
    """The elements joined along an axis, or stacked along a new one."""
    parts = parts_of(ctx, values)
    items = elements(parts)
    if items is None and new_axis:
        rows = stacked(ctx, parts)
        (axis,) = axes_of(ctx, (axis,), rows.type.rank)
        return _first_axis_to(ctx, rows, axis)
    if items is None:
        return concat(ctx, [_joined(ctx, part, axis) for part in parts], axis)
    if new_axis:
        rank = items[0].type.rank + 1 if items else 1
        (axis,) = axes_of(ctx, (axis,), rank)
        items = tuple(unsqueeze(ctx, item, (axis,)) for item in items)
    return concat(ctx, items, axis)


def _joined(ctx: Context, part: Part, axis: int) -> Value:
    """The elements of one part joined along an axis."""
    if isinstance(part, Value):
        return part
    if isinstance(part, Ragged):
        (axis,) = axes_of(ctx, (axis,), len(part.element.dims))
        return joined(ctx, part, axis)
    rows = stacked(ctx, (part,))
    (axis,) = axes_of(ctx, (axis,), rows.type.rank - 1)
    moved = _first_axis_to(ctx, rows, axis)
    shape = moved.type.shape
    return reshape_to(
        ctx, moved, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    )


def _first_axis_to(ctx: Context, x: Value, axis: int) -> Value:
    order = [*range(1, axis + 1), 0, *range(axis + 1, x.type.rank)]
    return transpose(ctx, x, order)


@converter("SplitToSequence", since=11)
def convert_split(
    ctx: Context, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: int = 1
) -> Value:
    """Parts along an axis: of one size each, or of given sizes."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    keeps = split is not None or bool(keepdims)
    whole = x.type.shape[axis]
    if split is not None and split.type.rank == 1 and not split.type.is_static:
        if chunk := _repeated_size(ctx, split):
            reason = (
                f"{split.type.shape[0]} parts of {chunk} do not make up axis {axis} of {x.type}"
            )
            ctx.require_equal(split.type.shape[0] * chunk, whole, reason)
            return sequence(ctx, (_equal_parts(ctx, x, split.type.shape[0], chunk, axis, keeps),))
        return sequence(ctx, (split_into(ctx, x, cast_to(ctx, split, DType.I64), axis),))
    if not isinstance(whole, Const) and (split is None or split.type.rank == 0):
        chunk = _part_size(ctx, split)
        if surely_divides(chunk, whole):
            count = ctx.simplify(whole // chunk)
            return sequence(ctx, (_equal_parts(ctx, x, count, chunk, axis, keeps),))
        return sequence(ctx, (split_into(ctx, x, _chunks(ctx, whole, chunk), axis),))
    sizes = _part_sizes(ctx, x, split, axis)
    parts = split_axis(ctx, x, axis, sizes, len(sizes))
    if not keeps:
        parts = tuple(squeeze(ctx, part, (axis,)) for part in parts)
    return sequence(ctx, parts)


def _equal_parts(ctx: Context, x: Value, count: Expr, chunk: int, axis: int, keeps: bool) -> Rows:
    """So many parts of one size."""
    shape = x.type.shape
    apart = reshape_to(ctx, x, (*shape[:axis], count, index(chunk), *shape[axis + 1 :]))
    others = [a for a in range(x.type.rank + 1) if a != axis]
    rows = transpose(ctx, apart, (axis, *others))
    return Rows(rows if keeps else squeeze(ctx, rows, (axis + 1,)))


def _chunks(ctx: Context, whole: Expr, chunk: int) -> Value:
    """The widths of parts of one size, of which the last may be smaller."""
    starts = ctx.call(Range(size=ctx.simplify(ceil_div(whole, chunk)), delta=index(chunk)))
    left = ctx.call(Sub(), ctx.size_tensor(np.array(whole, np.object_)), starts)
    return ctx.call(Minimum(), left, ctx.scalar(chunk, DType.I64))


def _part_sizes(ctx: Context, x: Value, split: Value | None, axis: int) -> Sequence[Expr]:
    whole = x.type.shape[axis]
    if split is not None and split.type.rank == 1:
        sizes = ctx.need_sizes(split, "how the tensor is split")
        return sizes if ctx.data_only(split) is None else parts_of_data(ctx, x, sizes, axis)
    chunk = _part_size(ctx, split)
    size = const_size(whole)
    return [index(min(chunk, size - start)) for start in range(0, size, chunk)]


def _repeated_size(ctx: Context, split: Value) -> int | None:
    """The size of all parts, where it is a constant, repeated: so is repeat_interleave exported."""
    made = next((node for node in reversed(ctx.nodes) if split in node.outputs), None)
    element = ctx.array(made.inputs[0]) if made and isinstance(made.op, Expand) else None
    if element is None or element.size != 1 or element.item() < 1:
        return None
    return int(element.item())


def _part_size(ctx: Context, split: Value | None) -> int:
    """How many elements each part has, where all have as many."""
    size = 1 if split is None else ctx.one_int(split, "how the tensor is split")
    if size < 1:
        ctx.refuse(f"parts of {size} elements")
    return size


@converter("SequenceMap", since=17)
def convert_map(ctx: Context, values: Value, *others: Value, body: OnnxGraph) -> tuple[Value, ...]:
    """A sequence of what the body makes of each element; other sequences go along with it."""
    operands = (values, *others)
    sequences = [parts_of(ctx, v) for v in operands if isinstance(v, Items)]
    count = length(ctx, parts_of(ctx, values))
    if any(surely_differ(length(ctx, parts), count, ctx.bounds) for parts in sequences):
        ctx.refuse("its sequences differ in length")
    apart = [elements(parts) for parts in sequences]
    if any(items is None for items in apart):
        return _mapped_by_a_run(ctx, operands, body)
    rows = [
        ctx.run_graph(ctx, body, _in_order(operands, row))
        for row in zip(*(items or () for items in apart), strict=True)
    ]
    return tuple(sequence(ctx, [row[k] for row in rows]) for k in range(len(body.outputs)))


def _mapped_by_a_run(ctx: Context, operands: Sequence[Value], body: OnnxGraph) -> tuple[Value, ...]:
    sequences = [v for v in operands if isinstance(v, Items)]
    types = [_element_type(ctx, v.parts) for v in sequences]
    if any(element.fixed is None for element in types):
        return _mapped_one_by_one(ctx, operands, body)

    def step(inner: Body, carries: list[Value], row: list[Value]) -> Step:
        return Step((), inner.run_graph(inner, body, _in_order(operands, row)))

    rows = [stacked(ctx, v.parts) for v in sequences]
    try:
        made = scan(ctx, "map", (), rows, step)
    except OpenRows:
        return _mapped_one_by_one(ctx, operands, body)
    return tuple(sequence(ctx, (Rows(tensor),)) for tensor in made)


def _mapped_one_by_one(
    ctx: Context, operands: Sequence[Value], body: OnnxGraph
) -> tuple[Value, ...]:
    """The same of elements that differ in size: a loop that builds the sequences."""

    def step(inner: Context, values: Sequence[Value]) -> tuple[Value, ...]:
        number, going, *before = values
        row = [convert_at(inner, v, number) for v in operands if isinstance(v, Items)]
        made = inner.run_graph(inner, body, _in_order(operands, row))
        return (going, *(map(partial(convert_insert, inner), before, made)))

    count = next(length(ctx, v.parts) for v in operands if isinstance(v, Items))
    graph = StepGraph(step, 1 + len(body.outputs))
    return loop_over(ctx, graph, count, None, [sequence(ctx, ()) for _ in body.outputs])


def _in_order(operands: Sequence[Value], row: Sequence[Value]) -> list[Value]:
    """The operands with an element in place of each sequence."""
    left = iter(row)
    return [next(left) if isinstance(v, Items) else v for v in operands]


@converter("Optional", since=15)
def convert_optional(ctx: Context, value: Value | None = None, *, type: object = None) -> Value:
    """A value, or nothing of some type."""
    return value if value is not None else nothing(ctx)


@converter("OptionalHasElement", since=15)
def convert_has_element(ctx: Context, value: Value | None = None) -> Value:
    """Whether there is a value."""
    there = value is not None and not isinstance(value, Nothing)
    return ctx.constant(np.array(there, np.bool_))


@converter("OptionalGetElement", since=15)
def convert_get_element(ctx: Context, value: Value) -> Value:
    """The value there must be."""
    if isinstance(value, Nothing):
        ctx.refuse("there is no value")
    return value


def _place(ctx: Context, position: Value, parts: Sequence[Part], more: int) -> int | None:
    """The part at a constant position; None where only a run knows it.

    With one `more`, the end is a position too.
    """
    if ctx.array(position) is None:
        return None
    at = ctx.one_int(position, "the position")
    if elements(parts) is not None and not -len(parts) <= at < len(parts) + more:
        ctx.refuse(f"there is no position {at}")
    passed = parts[: at + 1 - more] if at >= 0 else parts[at:]
    outside = not -len(parts) <= at < len(parts) + more
    if outside or elements(passed) is None:
        return None
    return at if at >= 0 else at + len(parts)


def _element_type(ctx: Context, parts: Sequence[Part]) -> ElementType:
    found = element_type(ctx, parts)
    if found is None:
        ctx.refuse("nobody knows the type of what is in an empty sequence")
    return found


def _from_front(ctx: Context, position: Value, count: Expr, more: int) -> Value:
    """The position as a scalar, below `count` or with one `more` at it; a run refuses others."""
    at = ctx.one_size(position, "the position")
    fits = ctx.simplify(both(-count <= at, at < count + more))
    reason = f"node '{ctx.node.label}': a sequence has no element at the position in the data"
    if fits == Const(False, DType.BOOL):
        ctx.refuse("there is no such position")
    if fits != Const(True, DType.BOOL):
        ctx.data.require(ctx.size_tensor(np.array(fits, np.object_), DType.BOOL), True, reason)
    scalar = cast_to(ctx, reshape_to(ctx, position, ()), DType.I64)
    back = ctx.call(Less(), scalar, ctx.scalar(0, DType.I64))
    length_now = ctx.size_tensor(np.array(count, np.object_))
    return ctx.call(Where(), back, ctx.call(Add(), scalar, length_now), scalar)
