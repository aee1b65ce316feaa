"""Elements of a sequence that may differ in size: one behind the other, with a table of shapes.

They have one rank and one element type. What is done to the sequence is done to both tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Div, Equal, Less, LessEqual, Mul, Sub, Where
from dlc.graph.ops.from_sizes import Range
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import CumSum, Reduce
from dlc.graph.ops.shape import Expand, Slice
from dlc.te.expr import ONE, ZERO, Expr, index
from dlc.te.types import TensorType


@dataclass(frozen=True, slots=True)
class ElementType:
    """What is known of the type of all elements: None for a size in which they may differ."""

    dims: tuple[Expr | None, ...]
    dtype: DType

    @property
    def fixed(self) -> TensorType | None:
        """The one type of all elements, if they have one."""
        sizes = tuple(d for d in self.dims if d is not None)
        return TensorType(sizes, self.dtype) if len(sizes) == len(self.dims) else None

    def __str__(self) -> str:
        sizes = ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype.name.lower()}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Ragged:
    """Elements that may differ in size: all of them in a vector, and the shape of each as a row."""

    data: Value
    shapes: Value
    element: ElementType

    @property
    def count(self) -> Expr:
        """How many they are."""
        return self.shapes.type.shape[0]


def no_elements(ctx: Context, element: ElementType) -> Ragged:
    """None at all, of a type."""
    data = ctx.constant(np.zeros(0, NUMPY_DTYPES[element.dtype]))
    return Ragged(data, ctx.constant(np.zeros((0, len(element.dims)), np.int64)), element)


def of_rows(ctx: Context, rows: Value, element: ElementType) -> Ragged:
    """The rows of a tensor as elements."""
    count, *sizes = rows.type.shape
    table = _table(ctx, sizes)
    if count != ONE:
        table = ctx.call(Expand(shape=(count, index(len(sizes)))), table)
    return Ragged(reshape_to(ctx, rows, (rows.type.elems,)), table, element)


def in_order(ctx: Context, parts: Sequence[Ragged], element: ElementType) -> Ragged:
    """The elements of all of them, one sequence behind the other."""
    if not parts:
        return no_elements(ctx, element)
    data = concat(ctx, [p.data for p in parts], 0)
    return Ragged(data, concat(ctx, [p.shapes for p in parts], 0), element)


def element_at(ctx: Context, values: Ragged, here: Value) -> Value:
    """The element at a position, which is surely there: a scalar that is not negative."""
    first = _elements_before(ctx, values, here)
    shape = ctx.call(Gather(axis=0), values.shapes, here)
    known = ctx.need_sizes(shape, "the shape of an element")
    dims = [
        ctx.data.size(size) if dim is None else dim
        for size, dim in zip(known, values.element.dims, strict=True)
    ]
    return reshape_to(ctx, _cut(ctx, values.data, first, math.prod(dims, start=ONE)), dims)


def with_element(ctx: Context, values: Ragged, item: Ragged, here: Value) -> Ragged:
    """The elements with one more at a position, which is surely there or the end."""
    place, first = _place(ctx, here), _elements_before(ctx, values, here)
    data = _spliced(ctx, values.data, first, ZERO, (item.data,))
    table = _spliced(ctx, values.shapes, place, ZERO, (item.shapes,))
    return Ragged(data, table, values.element)


def without_element(ctx: Context, values: Ragged, here: Value) -> Ragged:
    """The elements without the one at a position, which is surely there."""
    place, first = _place(ctx, here), _elements_before(ctx, values, here)
    length = ctx.call(Gather(axis=0), _lengths(ctx, values), here)
    count = ctx.data.size(ctx.one_size(length, "the length of an element"))
    data = _spliced(ctx, values.data, first, count, ())
    return Ragged(data, _spliced(ctx, values.shapes, place, ONE, ()), values.element)


def as_rows(ctx: Context, values: Ragged) -> Value:
    """The elements as the rows of a tensor; a run refuses those that differ in size."""
    dims = [_common_size(ctx, values, axis) for axis in range(len(values.element.dims))]
    return reshape_to(ctx, values.data, (values.count, *dims))


def joined(ctx: Context, values: Ragged, axis: int) -> Value:
    """The elements joined along an axis; a run refuses those that differ in another size.

    Joined along the first axis they lie as they do in the vector. Along another one, a line of the
    result is a line of each element in turn, and each place of it is read from its element.
    """
    axes = range(len(values.element.dims))
    dims = [ONE if a == axis else _common_size(ctx, values, a) for a in axes]
    widths = _column(ctx, values, axis)
    whole = ctx.call(Reduce(kind="sum", axes=(0,)), widths)
    total = ctx.data.size(ctx.one_size(whole, "the size of what is joined"))
    shape = (*dims[:axis], total, *dims[axis + 1 :])
    lines, piece = math.prod(dims[:axis], start=ONE), math.prod(dims[axis + 1 :], start=ONE)
    if ctx.simplify(lines) == ONE:
        return reshape_to(ctx, values.data, shape)
    places = _places(ctx, widths, lines, total)
    pieces = reshape_to(ctx, values.data, (ctx.simplify(lines * total), piece))
    return reshape_to(ctx, ctx.call(Gather(axis=0), pieces, places), shape)


def split_into(ctx: Context, x: Value, widths: Value, axis: int) -> Ragged:
    """Parts along an axis, so wide each; a run refuses widths that do not make up the whole."""
    shape = x.type.shape
    count, total = widths.type.shape[0], shape[axis]
    none = ctx.constant(np.zeros(1, np.int64))
    least, most = (
        ctx.call(Reduce(kind=kind, axes=(0,)), concat(ctx, [widths, none], 0))
        for kind in ("min", "max")
    )
    size = ctx.size_tensor(np.array([total], np.object_))
    whole = ctx.call(Reduce(kind="sum", axes=(0,)), widths)
    message = f"node '{ctx.node.label}': the parts do not make up axis {axis} of what it splits"
    ctx.data.require(ctx.call(Equal(), least, none), True, message)
    ctx.data.require(ctx.call(LessEqual(), most, size), True, message)  # or a sum may overflow
    ctx.data.require(ctx.call(Equal(), whole, size), True, message)
    columns = [
        widths
        if a == axis
        else ctx.call(Expand(shape=(count,)), ctx.size_tensor(np.array(size, np.object_)))
        for a, size in enumerate(shape)
    ]
    table = concat(ctx, [unsqueeze(ctx, column, (1,)) for column in columns], 1)
    lines, piece = math.prod(shape[:axis], start=ONE), math.prod(shape[axis + 1 :], start=ONE)
    if ctx.simplify(lines) != ONE:
        rows = ctx.simplify(lines * total)
        x = ctx.call(
            Gather(axis=0), reshape_to(ctx, x, (rows, piece)), _sources(ctx, widths, lines, total)
        )
    dims = tuple(None if a == axis else size for a, size in enumerate(shape))
    return Ragged(reshape_to(ctx, x, (x.type.elems,)), table, ElementType(dims, x.type.dtype))


def _places(ctx: Context, widths: Value, lines: Expr, total: Expr) -> Value:
    """Where in the vector each place of each line lies: [lines, total], of elements so wide."""
    numbers = ctx.call(Range(size=total))
    width, start = _owners(ctx, widths, numbers)
    above = ctx.call(Mul(), start, ctx.size_tensor(np.array(lines - 1, np.object_)))
    line = unsqueeze(ctx, ctx.call(Range(size=lines)), (1,))
    own = ctx.call(Mul(), line, width)
    return ctx.call(Add(), own, ctx.call(Add(), above, numbers))


def _sources(ctx: Context, widths: Value, lines: Expr, total: Expr) -> Value:
    """Where in the lines each place of the vector comes from: [lines * total], as above."""
    lines_value = ctx.size_tensor(np.array(lines, np.object_))
    numbers = ctx.call(Range(size=ctx.simplify(lines * total)))
    length, first = _owners(ctx, ctx.call(Mul(), widths, lines_value), numbers)
    width, start = (ctx.call(Div(), v, lines_value) for v in (length, first))
    inside = ctx.call(Sub(), numbers, first)
    line = ctx.call(Div(), inside, width)
    along = ctx.call(Sub(), inside, ctx.call(Mul(), line, width))
    whole = ctx.call(Mul(), line, ctx.size_tensor(np.array(total, np.object_)))
    return ctx.call(Add(), whole, ctx.call(Add(), start, along))


def _owners(ctx: Context, lengths: Value, numbers: Value) -> tuple[Value, Value]:
    """The length and the start of the element that each place belongs to."""
    ends = ctx.call(CumSum(axis=0), lengths)
    passed = ctx.call(LessEqual(), unsqueeze(ctx, ends, (1,)), numbers)
    counted = ctx.call(Where(), passed, ctx.scalar(1, DType.I64), ctx.scalar(0, DType.I64))
    owner = ctx.call(Reduce(kind="sum", axes=(0,), keepdims=False), counted)
    length = ctx.call(Gather(axis=0), lengths, owner)
    return length, ctx.call(Sub(), ctx.call(Gather(axis=0), ends, owner), length)


def _table(ctx: Context, sizes: Sequence[Expr]) -> Value:
    """A shape as the only row of a table."""
    row = np.empty((1, len(sizes)), np.object_)
    row[0, :] = list(sizes)
    return ctx.size_tensor(row)


def _lengths(ctx: Context, values: Ragged) -> Value:
    """How many numbers each element has."""
    return ctx.call(Reduce(kind="prod", axes=(1,), keepdims=False), values.shapes)


def _column(ctx: Context, values: Ragged, axis: int) -> Value:
    """One size of each element."""
    return ctx.call(Gather(axis=1), values.shapes, ctx.scalar(axis, DType.I64))


def _common_size(ctx: Context, values: Ragged, axis: int) -> Expr:
    """The size that all elements must have along an axis; 0 if there are none."""
    known = values.element.dims[axis]
    if known is not None:
        return known
    sizes = _column(ctx, values, axis)
    none = ctx.constant(np.zeros(1, np.int64))
    most = ctx.call(Reduce(kind="max", axes=(0,)), concat(ctx, [sizes, none], 0))
    least = ctx.call(Reduce(kind="min", axes=(0,)), concat(ctx, [sizes, most], 0))
    label = f"node '{ctx.node.label}'"
    message = f"{label}: the elements of a sequence differ in size along axis {axis}"
    ctx.data.require(ctx.call(Equal(), least, most), True, message)
    return ctx.data.size(ctx.one_size(most, "the size of all elements"))


def _elements_before(ctx: Context, values: Ragged, here: Value) -> Expr:
    """Where in the vector the element at a position starts."""
    before = ctx.call(Less(), ctx.call(Range(size=values.count)), here)
    counted = ctx.call(Where(), before, _lengths(ctx, values), ctx.scalar(0, DType.I64))
    first = ctx.call(Reduce(kind="sum", axes=(0,)), counted)
    return ctx.data.size(ctx.one_size(first, "where an element starts"))


def _place(ctx: Context, here: Value) -> Expr:
    return ctx.data.size(ctx.one_size(here, "the position"))


def _cut(ctx: Context, x: Value, first: Expr, count: Expr) -> Value:
    """So many rows of a tensor, from one on."""
    rest = x.type.shape[1:]
    starts, sizes = (first, *[ZERO] * len(rest)), (ctx.simplify(count), *rest)
    return ctx.call(Slice(starts=starts, sizes=sizes), x)


def _spliced(ctx: Context, x: Value, first: Expr, count: Expr, new: Sequence[Value]) -> Value:
    """The rows of a tensor with new ones in place of so many, from one on."""
    end = ctx.simplify(first + count)
    behind = ctx.data.size(ctx.simplify(x.type.shape[0] - end))
    return concat(ctx, [_cut(ctx, x, ZERO, first), *new, _cut(ctx, x, end, behind)], 0)
