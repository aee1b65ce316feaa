"""What sequences and optionals are while importing: neither is left in the graph.

A sequence is a list of parts. Most parts are one element; where only a run knows how many
elements there are, those of one type are the rows of a tensor, and those that differ in size lie
one behind the other. An optional is its value, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn, assert_never

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.ragged import (
    ElementType,
    Ragged,
    as_rows,
    element_at,
    in_order,
    of_rows,
)
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.slicing import concat, slice_axes
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.ops.shape import Expand
from dlc.te.expr import ONE, ZERO, Const, Expr, index
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


Part = Value | Rows | Ragged | Earlier


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
        if isinstance(part, Ragged):
            places = (ctx.scalar(i, DType.I64) for i in range(int(count.value)))
            found += (element_at(ctx, part, place) for place in places)
            continue
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
        total = total + (part.count if isinstance(part, Rows | Ragged) else ONE)
    return ctx.simplify(total)


def element_type(
    ctx: Context, parts: Sequence[Part], inner: Collection[str] = ()
) -> ElementType | None:
    """What the types of all elements have in common; None where there is no element.

    Sizes that read one of the `inner` variables differ from element to element.
    """
    found: ElementType | None = None
    for part in parts:
        match part:
            case Earlier():
                _refuse_earlier(ctx)
            case Ragged(element=element):
                own = element
            case Rows(tensor=tensor):
                own = ElementType(tensor.type.shape[1:], tensor.type.dtype)
            case Value():
                own = ElementType(part.type.shape, part.type.dtype)
            case _:
                assert_never(part)
        own = open_in(own, inner)
        found = own if found is None else common_type(ctx, found, own)
    return found


def open_in(element: ElementType, inner: Collection[str]) -> ElementType:
    """The type without the sizes that read one of these variables."""
    names = frozenset(inner)
    dims = (None if d is None or free_vars(d) & names else d for d in element.dims)
    return ElementType(tuple(dims), element.dtype)


def common_type(ctx: Context, a: ElementType, b: ElementType) -> ElementType:
    """What two types have in common; others than in size they must not differ."""
    if a.dtype is not b.dtype or len(a.dims) != len(b.dims):
        ctx.refuse(f"elements of a sequence differ in type: {a} and {b}")
    dims = (m if m == n else None for m, n in zip(a.dims, b.dims, strict=True))
    return ElementType(tuple(dims), a.dtype)


def stacked(ctx: Context, parts: Sequence[Part]) -> Value:
    """All elements as the rows of one tensor; a run refuses those that differ in size."""
    element = element_type(ctx, parts)
    if element is None:
        ctx.refuse("nobody knows the type of what is in an empty sequence")
    return stacked_as(ctx, parts, element)


def stacked_as(ctx: Context, parts: Sequence[Part], element: ElementType) -> Value:
    """The same for elements of a type, of which there may be none."""
    if (row := element.fixed) is None:
        return as_rows(ctx, ragged(ctx, parts, element))
    tensors = [_rows(ctx, part) for part in parts]
    return concat(ctx, tensors, 0) if tensors else no_rows(ctx, row)


def ragged(ctx: Context, parts: Sequence[Part], element: ElementType) -> Ragged:
    """All elements one behind the other, whose sizes may differ where the type leaves them open."""
    found = [
        part if isinstance(part, Ragged) else of_rows(ctx, _rows(ctx, part), element)
        for part in parts
    ]
    return in_order(ctx, found, element)


def _rows(ctx: Context, part: Part) -> Value:
    match part:
        case Earlier():
            _refuse_earlier(ctx)
        case Rows(tensor=tensor):
            return tensor
        case Ragged():
            return as_rows(ctx, part)
        case Value():
            return unsqueeze(ctx, part, (0,))
        case _:
            assert_never(part)


def no_rows(ctx: Context, row: TensorType) -> Value:
    """A tensor without rows, which would be of this type."""
    if row.is_static:
        return ctx.constant(np.zeros((0, *row.static_shape), NUMPY_DTYPES[row.dtype]))
    return ctx.call(Expand(shape=(ZERO, *row.shape)), ctx.scalar(0, row.dtype))


def _refuse_earlier(ctx: Context) -> NoReturn:
    ctx.refuse("a step of a loop reads what earlier steps put into a sequence")
