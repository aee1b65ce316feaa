"""Converters of sequences and optionals, whose structure is known while importing.

A sequence is a list of values, and an optional is its value or nothing: neither is left in the
graph. Where only a run knows a position, its elements must have one type, and each result is a
choice among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.elementwise import axes_of
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, squeeze, unsqueeze
from dlc.frontend.onnx.slicing import concat, parts_of_data, split_axis
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Equal, Less, Where
from dlc.graph.ops.gather import Gather
from dlc.te.expr import ONE, Const, Expr, both, index
from dlc.te.types import TensorType, const_size

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


@dataclass(frozen=True, slots=True)
class Items(Value):
    """A sequence: in no graph, only its elements are."""

    items: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing(Value):
    """An optional without a value."""


_NO_TYPE = TensorType((0,), DType.BOOL)


def sequence(ctx: Context, items: Sequence[Value]) -> Items:
    """A sequence of these values."""
    return Items(ctx.names.fresh("sequence"), _NO_TYPE, tuple(items))


def nothing(ctx: Context) -> Nothing:
    """An optional without a value."""
    return Nothing(ctx.names.fresh("nothing"), _NO_TYPE)


def items_of(ctx: Context, value: Value) -> tuple[Value, ...]:
    """The elements of a sequence."""
    if not isinstance(value, Items):
        ctx.refuse(f"'{value.name}' is a tensor, not a sequence")
    return value.items


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
    return ctx.constant(np.array(len(items_of(ctx, values)), np.int64))


@converter("SequenceAt", since=11)
def convert_at(ctx: Context, values: Value, position: Value) -> Value:
    """One element."""
    items = items_of(ctx, values)
    at = _place(ctx, position, len(items) - 1, len(items))
    if at is not None:
        return items[at]
    rows = [unsqueeze(ctx, item, (0,)) for item in _of_one_type(ctx, items, position)]
    inside = checked(ctx, reshape_to(ctx, position, (ONE,)), (index(len(items)),))
    row = ctx.call(Gather(axis=0), concat(ctx, rows, 0), inside)
    return reshape_to(ctx, row, items[0].type.shape)


@converter("SequenceInsert", since=11)
def convert_insert(
    ctx: Context, values: Value, item: Value, position: Value | None = None
) -> Value:
    """A sequence with one element more, by default at its end."""
    items = items_of(ctx, values)
    at = len(items) if position is None else _place(ctx, position, len(items), len(items))
    if at is not None:
        return sequence(ctx, (*items[:at], item, *items[at:]))
    assert position is not None, "it has no place"
    _of_one_type(ctx, (*items, item), position)

    def pick(place: int, before: Value, here: Value) -> Value:
        own = (
            before if place == len(items) else _choose(ctx, Less, here, place, before, items[place])
        )
        return _choose(ctx, Equal, here, place, item, own)

    here = _from_front(ctx, position, len(items), len(items))
    return sequence(
        ctx, [pick(i, items[max(i - 1, 0)] if items else item, here) for i in range(len(items) + 1)]
    )


@converter("SequenceErase", since=11)
def convert_erase(ctx: Context, values: Value, position: Value | None = None) -> Value:
    """A sequence with one element less, by default the last."""
    items = items_of(ctx, values)
    at = len(items) - 1 if position is None else _place(ctx, position, len(items) - 1, len(items))
    if at is not None:
        return sequence(ctx, (*items[:at], *items[at + 1 :]))
    assert position is not None, "it has no place"
    _of_one_type(ctx, items, position)
    here = _from_front(ctx, position, len(items), len(items) - 1)
    pairs = itertools.pairwise(items)
    return sequence(
        ctx, [_choose(ctx, Less, here, i, b, a, most=True) for i, (a, b) in enumerate(pairs)]
    )


@converter("ConcatFromSequence", since=11)
def convert_concat(ctx: Context, values: Value, *, axis: int, new_axis: int = 0) -> Value:
    """The elements joined along an axis, or stacked along a new one."""
    items = items_of(ctx, values)
    if new_axis:
        rank = items[0].type.rank + 1 if items else 1
        (axis,) = axes_of(ctx, (axis,), rank)
        items = tuple(unsqueeze(ctx, item, (axis,)) for item in items)
    return concat(ctx, items, axis)


@converter("SplitToSequence", since=11)
def convert_split(
    ctx: Context, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: int = 1
) -> Value:
    """Parts along an axis: of one size each, or of given sizes."""
    (axis,) = axes_of(ctx, (axis,), x.type.rank)
    sizes = _part_sizes(ctx, x, split, axis)
    parts = split_axis(ctx, x, axis, sizes, len(sizes))
    if split is None and not keepdims:
        parts = tuple(squeeze(ctx, part, (axis,)) for part in parts)
    return sequence(ctx, parts)


def _part_sizes(ctx: Context, x: Value, split: Value | None, axis: int) -> Sequence[Expr]:
    whole = x.type.shape[axis]
    if split is not None and split.type.rank == 1:
        sizes = ctx.need_sizes(split, "how the tensor is split")
        return sizes if ctx.data_only(split) is None else parts_of_data(ctx, x, sizes, axis)
    chunk = ctx.one_int(split, "how the tensor is split") if split is not None else 1
    if not isinstance(whole, Const) or chunk < 1:
        ctx.refuse(f"into how many parts of {chunk} it splits {whole} is known only at run time")
    size = const_size(whole)
    return [index(min(chunk, size - start)) for start in range(0, size, chunk)]


@converter("SequenceMap", since=17)
def convert_map(ctx: Context, values: Value, *others: Value, body: OnnxGraph) -> tuple[Value, ...]:
    """A sequence of what the body makes of each element; other sequences go along with it."""
    length = len(items_of(ctx, values))
    operands = (values, *others)
    if any(len(v.items) != length for v in operands if isinstance(v, Items)):
        ctx.refuse("its sequences differ in length")
    rows = [
        ctx.run_graph(ctx, body, [v.items[i] if isinstance(v, Items) else v for v in operands])
        for i in range(length)
    ]
    return tuple(sequence(ctx, [row[k] for row in rows]) for k in range(len(body.outputs)))


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


def _place(ctx: Context, position: Value, last: int, length: int) -> int | None:
    """A position counted from the front, at most `last`; None where only a run knows it."""
    if ctx.array(position) is None:
        return None
    at = ctx.one_int(position, "the position")
    if not -length <= at <= last:
        ctx.refuse(f"there is no position {at}")
    return at if at >= 0 else at + length


def _of_one_type(ctx: Context, items: Sequence[Value], position: Value) -> Sequence[Value]:
    if not items or any(item.type != items[0].type for item in items):
        reason = "its position is known only at run time, and its elements differ in type"
        ctx.refuse(reason, "an input becomes a constant with values=", position.name)
    return items


def _from_front(ctx: Context, position: Value, length: int, last: int) -> Value:
    """The position as a scalar from 0 to `last`; a run refuses others."""
    at = ctx.one_size(position, "the position")
    count = ctx.constant(np.array(length, np.int64))
    scalar = cast_to(ctx, reshape_to(ctx, position, ()), DType.I64)
    zero = ctx.constant(np.zeros((), np.int64))
    fits = both(index(-length) <= at, at <= last)
    reason = f"node '{ctx.node.label}': a sequence has no element at the position in the data"
    ctx.data.require(ctx.size_tensor(np.array(fits, np.object_), DType.BOOL), True, reason)
    back = ctx.call(Less(), scalar, zero)
    return ctx.call(Where(), back, ctx.call(Add(), scalar, count), scalar)


def _choose(
    ctx: Context,
    op: Callable[[], Less | Equal],
    here: Value,
    place: int,
    then: Value,
    other: Value,
    *,
    most: bool = False,
) -> Value:
    """`then` where the position compares so with a place (`most`: or is equal to it)."""
    bound = ctx.constant(np.array(place + most, np.int64))
    return ctx.call(Where(), ctx.call(op(), here, bound), then, other)
