"""What sequences and optionals are while importing: neither is left in the graph.

A sequence is a list of parts. Most parts are one element; where only a run knows how many
elements there are, they have one type and are the rows of a tensor. An optional is its value, or
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.shape import Expand
from dlc.graph.sizes import bound_sizes
from dlc.te.expr import ONE, ZERO, Const, Expr, index
from dlc.te.simplify import surely_differ
from dlc.te.transform import free_vars
from dlc.te.types import TensorType

_MAX_TAKEN_APART = 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements of one type, of which perhaps only a run knows how many: the rows of a tensor."""

    tensor: Value

    @property
    def count(self) -> Expr:
        """How many they are."""
        return self.tensor.type.shape[0]


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a sequence held before a step of a loop that only adds to it: nobody reads it there."""

    name: str


Part = Value | Rows | Earlier


@dataclass(frozen=True, slots=True)
class Items(Value):
    """A sequence: in no graph, only its parts are."""

    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing(Value):
    """An optional without a value."""


_NO_TYPE = TensorType((0,), DType.BOOL)


def sequence(ctx: Context, parts: Sequence[Part]) -> Items:
    """A sequence of these parts."""
    return Items(ctx.names.fresh("sequence"), _NO_TYPE, tuple(parts))


def nothing(ctx: Context) -> Nothing:
    """An optional without a value."""
    return Nothing(ctx.names.fresh("nothing"), _NO_TYPE)


def parts_of(ctx: Context, value: Value) -> tuple[Part, ...]:
    """The parts of a sequence; a tensor is refused."""
    if not isinstance(value, Items):
        ctx.refuse(f"'{value.name}' is a tensor, not a sequence")
    return value.parts


def elements(parts: Sequence[Part]) -> tuple[Value, ...] | None:
    """The elements where each is a part of its own."""
    found = tuple(p for p in parts if isinstance(p, Value))
    return found if len(found) == len(parts) else None


def taken_apart(ctx: Context, parts: Sequence[Part]) -> tuple[Value, ...] | None:
    """The elements one by one; None where only a run knows how many."""
    found: list[Value] = []
    for part in parts:
        if isinstance(part, Value):
            found.append(part)
            continue
        count = length(ctx, (part,))
        if not isinstance(count, Const) or count.value > _MAX_TAKEN_APART:
            return None
        tensor = stacked(ctx, (part,))
        for i in range(int(count.value)):
            row = slice_axes(ctx, tensor, [index(i)], [index(i + 1)], [0], [1])
            found.append(reshape_to(ctx, row, tensor.type.shape[1:]))
    return tuple(found)


def length(ctx: Context, parts: Sequence[Part]) -> Expr:
    """The number of elements."""
    total: Expr = ZERO
    for part in parts:
        if isinstance(part, Earlier):
            _refuse_earlier(ctx)
        total = total + (part.count if isinstance(part, Rows) else ONE)
    return ctx.simplify(total)


def element_type(parts: Sequence[Part]) -> TensorType | None:
    """The type of the first element; None where there is none."""
    for part in parts:
        if isinstance(part, Value):
            return part.type
        if isinstance(part, Rows):
            return TensorType(part.tensor.type.shape[1:], part.tensor.type.dtype)
    return None


def sizes_known_outside(body: Context, type_: TensorType | None) -> TensorType | None:
    """The type with 0 for each size that only a body knows; no element is to have it."""
    if type_ is None:
        return None
    inner = frozenset(bound_sizes(body.nodes))
    sizes = (ZERO if free_vars(size) & inner else size for size in type_.shape)
    return TensorType(tuple(sizes), type_.dtype)


def stacked(ctx: Context, parts: Sequence[Part], empty: TensorType | None = None) -> Value:
    """All elements as the rows of one tensor: they have one type.

    Of a sequence without elements, `empty` tells the type.
    """
    first = element_type(parts) or empty
    if first is None:
        ctx.refuse("nobody knows the type of what is in an empty sequence")
    if not parts:
        return no_rows(ctx, first)
    tensors = []
    for part in parts:
        if isinstance(part, Earlier):
            _refuse_earlier(ctx)
        else:
            tensor = part.tensor if isinstance(part, Rows) else unsqueeze(ctx, part, (0,))
        own = TensorType(tensor.type.shape[1:], tensor.type.dtype)
        pairs = zip(own.shape, first.shape, strict=False)
        differ = own.dtype is not first.dtype or own.rank != first.rank
        if differ or any(surely_differ(a, b, ctx.bounds) for a, b in pairs):
            ctx.refuse(f"elements of a sequence differ in type: {first} and {own}")
        tensors.append(tensor)
    return concat(ctx, tensors, 0)


def no_rows(ctx: Context, row: TensorType) -> Value:
    """A tensor without rows, which would be of this type."""
    if row.is_static:
        return ctx.constant(np.zeros((0, *row.static_shape), NUMPY_DTYPES[row.dtype]))
    return ctx.call(Expand(shape=(ZERO, *row.shape)), ctx.scalar(0, row.dtype))


def _refuse_earlier(ctx: Context) -> None:
    ctx.refuse("a step of a loop reads what earlier steps put into a sequence")
